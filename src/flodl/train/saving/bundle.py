"""The parts of a bundle: everything that a resumed run needs, collected and restored, all or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor
from torch.nn.parameter import is_lazy

from flodl.checkpoint import check_values_fit
from flodl.core import TrainError
from flodl.core.paths import suggestion
from flodl.core.rng_state import RngState
from flodl.data import Loader
from flodl.graph import graph_state, load_carried_values, load_graph_state

from ..batches.cursor import BatchCursor
from ..batches.loaders import Loaders
from ..batches.position import Position
from ..callbacks.dispatch import Hooks
from ..evaluation.modes import modes_of, restore_modes
from ..record.settings import config_of
from ..session import Session
from .buffers import restore_buffers, unsaved_buffers
from .differences import graph_hashes
from .disk_space import expected_optimizer_bytes, num_bytes_of

PARTS = ("model", "optimizer", "step", "rng", "data", "history", "trainer", "average", "hooks", "graphs")


def collect_parts(session: Session, cursor: BatchCursor, hooks: Hooks) -> dict[str, Any]:
    """Return the state of a run between two updates."""
    model, loader, skipped = session.model, session.loader, session.skipped
    return {
        "model": model.state_dict(),
        "optimizer": session.optimizer.state_dict(),
        "step": session.train_step.state_dict(),
        "rng": RngState.capture(session.device).state_dict(),
        "data": None if loader is None else cursor.state_dict(loader),
        "history": session.history,
        "trainer": {
            **_fixed_settings(session),
            **asdict(session.position),
            "num_rollbacks": session.num_rollbacks,
            "skipped_in_a_row": 0 if skipped is None else skipped.row,
            "modes": modes_of(model),
            "modes_at_start": session.start.modes,
            "optimizer_at_start": session.start.optimizer,
            "limit": session.start.limit,
            "structural_hashes": graph_hashes(model),
            "parameters": _parameter_names(session),
        },
        "average": _averaged(session),
        "hooks": hooks.state_dict(),
        "graphs": graph_state(model),
        "buffers": unsaved_buffers(model),
        "outside": {name: parameter.detach() for name, parameter in _outside_model(session).items()},
        "config": {**(session.start.record or {}), **config_of(session)},
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
    learned = model.state_dict(), unsaved_buffers(model), _outside_model(session)
    states = *learned, session.optimizer.state_dict(), _averaged(session)
    return num_bytes_of(states) + expected_optimizer_bytes(session.optimizer)


def load_parts(
    session: Session,
    parts: Mapping[str, Any],
    *,
    loaders: Loaders,
    loader: Loader,
    hooks: Hooks,
    start: Callable[[], None],
    with_modes: bool,
) -> None:
    """Restore the state of a run; everything is checked before `start` and before the first value changes.

    Without `with_modes`, frozen parameters and modules in evaluation mode stay as they are.
    """
    _check(session, parts)
    if parts["data"] is not None:
        loaders.restore_training(loader, parts["data"])
    start()
    load_weights(session, parts)
    if session.skipped is not None:
        session.skipped.forget(session.updates, row=parts["trainer"].get("skipped_in_a_row", 0))
    session.history = list(parts["history"])
    session.num_rollbacks = parts["trainer"].get("num_rollbacks", 0)
    session.start.limit = parts["trainer"].get("limit")
    session.position = Position(**{name: parts["trainer"][name] for name in asdict(session.position)})
    hooks.load_state_dict(parts["hooks"])
    if with_modes:
        restore_modes(session.model, parts["trainer"]["modes"])
    load_graph_state(session.model, parts["graphs"], session.device)
    RngState.from_state_dict(parts["rng"], session.device).restore()


def load_weights(session: Session, parts: Mapping[str, Any]) -> None:
    """Restore weights, optimizer and carried state, but not data position, history and RNG state."""
    session.model.load_state_dict(parts["model"])
    session.optimizer.load_state_dict(parts["optimizer"])
    session.train_step.load_state_dict(parts["step"])
    if session.average is not None:
        session.average.load_state_dict(parts["average"] or dict(session.model.named_parameters()))
    # Older bundles lack these.
    saved = parts.get("outside") or {}
    for name, parameter in _outside_model(session).items():
        if name in saved:
            parameter.data.copy_(saved[name])
    restore_buffers(session.model, parts.get("buffers") or {}, session.device)
    load_carried_values(session.model, parts.get("graphs") or {}, session.device)


def _fixed_settings(session: Session) -> dict[str, str]:
    """Return the settings that cannot change in the middle of a run."""
    return {
        "optimizer": type(session.optimizer).__name__,
        "precision": session.train_step.settings.precision,
        "schedule": "no schedule" if session.schedule is None else type(session.schedule).__name__,
    }


def _check(session: Session, parts: Mapping[str, Any]) -> None:
    missing = [name for name in PARTS if name not in parts]
    if missing:
        raise TrainError(
            f"the bundle has no part {missing[0]!r}, so it was not saved by a trainer. "
            "Pass the checkpoint_dir of a run, or load its model.fdl with load_checkpoint."
        )
    _check_model(parts["model"], session.model.state_dict())
    for name, own in _fixed_settings(session).items():
        saved = parts["trainer"][name]
        if saved != own:
            raise TrainError(
                f"the run was saved with {name} {saved!r}, and this trainer uses {own!r}. Nothing was "
                f"loaded. Resume with the original {name}, or choose a different checkpoint_dir."
            )
    sizes = [
        [len(group["params"]) for group in groups]
        for groups in (parts["optimizer"]["param_groups"], session.optimizer.param_groups)
    ]
    if sizes[0] != sizes[1]:
        raise TrainError(
            f"the saved optimizer has groups of {sizes[0]} parameters, this one of {sizes[1]}. Nothing was "
            "loaded. Build the optimizer with the original groups. Groups that a hook adds cannot be "
            "resumed: create all of them at the start, with groups(model, {…}), and use Phase."
        )
    _check_outside(session, parts.get("outside") or {})
    # Older bundles have no names.
    _check_order(parts["trainer"].get("parameters"), _parameter_names(session))


def _outside_model(session: Session) -> dict[str, Tensor]:
    """Return the parameters of the optimizer that are not in the model, by group and index."""
    inside = set(session.model.parameters())
    return {
        f"{group}.{index}": parameter
        for group, held in enumerate(session.optimizer.param_groups)
        for index, parameter in enumerate(held["params"])
        if parameter not in inside
    }


def _check_outside(session: Session, saved: Mapping[str, Tensor]) -> None:
    for name, parameter in _outside_model(session).items():
        if name in saved and saved[name].shape != parameter.shape:
            group, index = name.split(".")
            raise TrainError(
                f"parameter {index} of group {group} of the optimizer, which is not in the model, has "
                f"shape {_shape(parameter)}, and it was saved with {_shape(saved[name])}. Nothing was "
                "loaded. Build the optimizer with the original parameters."
            )


def _parameter_names(session: Session) -> list[list[str]]:
    """Return the parameter names of each group; the state of an optimizer knows them by index only."""
    names = {parameter: name for name, parameter in session.model.named_parameters()}
    return [
        [names.get(parameter, "") for parameter in group["params"]]
        for group in session.optimizer.param_groups
    ]


def _check_order(saved: list[list[str]] | None, own: list[list[str]]) -> None:
    for group, (before, now) in enumerate(zip(saved or [], own)):
        for index, (then, here) in enumerate(zip(before, now)):
            if then != here:
                raise TrainError(
                    f"parameter {index} of group {group} of the optimizer is {_quoted(here)}, and it was "
                    f"saved as {_quoted(then)}: they would get each other's moments. Nothing was loaded. "
                    "Build the optimizer with its parameters in the original order and groups."
                )


def _quoted(name: str) -> str:
    return repr(name) if name else "not in the model"


def _check_model(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    missing = [name for name in own if name not in saved]
    unknown = [name for name in saved if name not in own]
    shapes = [name for name in own if name in saved and not _fits(saved[name], own[name])]
    if not missing and not unknown and not shapes:
        tensors = {name: name for name, value in own.items() if isinstance(value, Tensor)}
        check_values_fit(tensors, saved, own, "the saved run")
        return
    if shapes:
        name = shapes[0]
        what = f"{name!r} has shape {_shape(saved[name])} there and {_shape(own[name])} here."
    elif missing:
        what = f"it has no {missing[0]!r}. {suggestion(missing[0], saved, known_as='names')}"
    else:
        hint = suggestion(unknown[0], own, known_as="names")
        what = f"it has {unknown[0]!r}, which this model does not have. {hint}"
    raise TrainError(
        f"the saved run belongs to a different model: {what} Nothing was loaded. "
        "Resume with the model that was saved, or choose a different checkpoint_dir."
    )


def _fits(saved: Any, own: Any) -> bool:
    """Return whether shapes match; a lazy parameter takes any shape."""
    return _shape(saved) == _shape(own) if not is_lazy(own) else isinstance(saved, Tensor)


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, Tensor) else None
