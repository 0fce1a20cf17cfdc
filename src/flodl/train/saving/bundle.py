"""The parts of a bundle: everything that a resumed run needs, collected and restored, all or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from torch import Tensor

from flodl.core.rng_state import RngState
from flodl.data import Loader
from flodl.engine import enter_training
from flodl.graph import graph_state, load_carried_values, load_graph_state

from ..batches.cursor import BatchCursor
from ..batches.loaders import Loaders
from ..batches.position import Position
from ..callbacks.dispatch import Hooks
from ..evaluation.modes import modes_of, restore_modes, restored_modes
from ..record.settings import config_of
from ..session import Session
from .buffers import restore_buffers, separate_buffers, unsaved_buffers
from .changes.differences import graph_structures
from .changes.label_names import label_names_of
from .check import fixed_settings, outside_model, parameter_names
from .check_optimizer import with_own_implementation
from .run_folder.disk_space import expected_optimizer_bytes, num_bytes_of


def collect_parts(session: Session, cursor: BatchCursor, hooks: Hooks) -> dict[str, Any]:
    """Return the state of a run between two updates."""
    model, loader, skipped = session.model, session.loader, session.skipped
    structures = graph_structures(model)
    return {
        "model": model.state_dict(),
        "optimizer": session.optimizer.state_dict(),
        # Carried values are in the part `graphs`.
        "step": {key: one for key, one in session.train_step.state_dict().items() if key != "carried"},
        "rng": RngState.capture(session.device).state_dict(),
        "data": None if loader is None else cursor.state_dict(loader),
        "history": session.history,
        "trainer": {
            **fixed_settings(session),
            **session.position.saved(),
            "spent_s": session.epoch_s if session.is_inside_epoch else 0.0,
            "num_rollbacks": session.num_rollbacks,
            "skipped_in_a_row": 0 if skipped is None else skipped.row,
            "modes": modes_of(model),
            "modes_at_start": session.start.modes,
            "optimizer_at_start": session.start.optimizer,
            "used_config": session.start.used_config,
            "limit": session.start.limit,
            "epochs_elsewhere": session.start.epochs_elsewhere,
            "evaluated_since": session.start.evaluated_since,
            "fit_calls": session.fit_calls.made,
            "optimizer_at_call": session.fit_calls.at_begin,
            "structural_hashes": {path: one.hash for path, one in structures.items()},
            "structures": {path: one.as_metadata() for path, one in structures.items()},
            "parameters": parameter_names(session),
            "labels": label_names_of(model),
            "unsaved_in_hooks": hooks.unsaved_values.changed(),
        },
        "average": _averaged(session),
        "hooks": hooks.state_dict(),
        "graphs": graph_state(model),
        "buffers": unsaved_buffers(model),
        "outside": {name: parameter.detach() for name, parameter in outside_model(session).items()},
        "config": {**(session.start.record or {}), **config_of(session)},
        **({} if session.position.ranks is None else {"ranks": session.position.ranks}),
    }


def _averaged(session: Session) -> dict[str, Tensor] | None:
    """Return a state_dict of the model that contains the averages, with buffers and tied names."""
    if session.average is None:
        return None
    averages = session.average.state_dict()
    of = {p: averages[name] for name, p in session.model.named_parameters() if name in averages}
    named = session.model.named_parameters(remove_duplicate=False)
    state = {name: value for name, value in session.model.state_dict().items() if isinstance(value, Tensor)}
    return {**state, **{name: of[parameter] for name, parameter in named if parameter in of}}


def expected_bytes(session: Session) -> int:
    """Return the approximate size of a bundle."""
    model = session.model
    learned = model.state_dict(), unsaved_buffers(model), outside_model(session)
    states = *learned, session.optimizer.state_dict(), _averaged(session)
    return num_bytes_of(states) + expected_optimizer_bytes(session.optimizer)


def load_parts(
    session: Session,
    parts: Mapping[str, Any],
    *,
    loaders: Loaders,
    loader: Loader | None,
    hooks: Hooks,
    start: Callable[[], None],
    with_modes: bool,
) -> None:
    """Restore the state of a run that `check_saved_run` has checked.

    `start` is called when the data matches too, before the first value changes. Without `with_modes`, frozen
    parameters and modules in evaluation mode stay as they are. Without a loader, the position in the data is
    left out.
    """
    if parts["data"] is not None and loader is not None:
        loaders.restore_training(loader, parts["data"])
    start()
    with nullcontext() if with_modes else restored_modes(session.model):
        # A module may change its weights with its mode, as LoRA does, and those of a bundle are for training.
        enter_training(session.model)
        load_weights(session, parts)
    if session.skipped is not None:
        session.skipped.forget(session.updates, row=parts["trainer"].get("skipped_in_a_row", 0))
    session.history = list(parts["history"])
    session.num_rollbacks = parts["trainer"].get("num_rollbacks", 0)
    session.start.limit = parts["trainer"].get("limit")
    session.start.evaluated_since = parts["trainer"].get("evaluated_since", 0)
    saved = {name: parts["trainer"][name] for name in session.position.saved() if name in parts["trainer"]}
    session.position = Position(**saved, ranks=parts.get("ranks") if session.settings.devices else None)
    hooks.load_state_dict(parts["hooks"])
    if with_modes:
        restore_modes(session.model, parts["trainer"]["modes"])
    load_graph_state(session.model, parts["graphs"], session.device, strict=False)
    RngState.from_state_dict(parts["rng"], session.device).restore()


def load_weights(session: Session, parts: Mapping[str, Any]) -> None:
    """Restore weights, optimizer and carried state, but not data position, history and RNG state."""
    separate_buffers(session.model)
    session.model.load_state_dict(parts["model"])
    session.optimizer.load_state_dict(with_own_implementation(parts["optimizer"], session.optimizer))
    session.train_step.load_state_dict(parts["step"])
    session.sums_outside = None
    if session.average is not None:
        session.average.load_state_dict(parts["average"] or dict(session.model.named_parameters()))
    # Older bundles lack these.
    load_outside(session, parts.get("outside") or {})
    restore_buffers(session.model, parts.get("buffers") or {}, session.device)
    load_carried_values(session.model, parts.get("graphs") or {}, session.device)


def load_outside(session: Session, saved: Mapping[str, Tensor]) -> None:
    """Restore the parameters of the optimizer that are not in the model."""
    for name, parameter in outside_model(session).items():
        if name in saved:
            parameter.data.copy_(saved[name])
