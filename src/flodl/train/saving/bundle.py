"""Everything that a resumed run needs: gathered into the parts of a bundle, and put back, all or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn.parameter import is_lazy

from flodl.checkpoint import check_values_fit
from flodl.core import CursorError, TrainError
from flodl.core.paths import suggestion
from flodl.core.rng_state import RngState
from flodl.data import Loader
from flodl.graph import graph_state, load_carried_values, load_graph_state

from ..build import settings_of
from ..evaluation.modes import modes_of, restore_modes
from .buffers import restore_buffers, unsaved_buffers
from .differences import graph_hashes
from .disk_space import moments_to_come_bytes, num_bytes_of

if TYPE_CHECKING:
    from ..run import Run

from ..batches.position import Place

PARTS = ("model", "optimizer", "step", "rng", "data", "history", "trainer", "average", "hooks", "graphs")


def parts_of(run: Run) -> dict[str, Any]:
    """Give the state of a run between two updates."""
    loader = run.feeding.training
    return {
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "step": run.train_step.state_dict(),
        "rng": RngState.capture(run.device).state_dict(),
        "data": None if loader is None else run.handing.cursor(loader),
        "history": run.history,
        "trainer": {
            **_kinds(run),
            **asdict(run.place),
            "num_rollbacks": run.num_rollbacks,
            "skipped_in_a_row": 0 if run.watch is None else run.watch.row,
            "modes": modes_of(run.model),
            "modes_at_start": run.modes_at_start,
            "optimizer_at_start": run.optimizer_at_start,
            "structural_hashes": graph_hashes(run.model),
            "parameters": _names_of_groups(run),
        },
        "average": _averaged(run),
        "hooks": run.hooks.state_dict(),
        "graphs": graph_state(run.model),
        "buffers": unsaved_buffers(run.model),
        "outside": {name: parameter.detach() for name, parameter in _outside(run).items()},
        "config": settings_of(run),
    }


def _averaged(run: Run) -> dict[str, Tensor] | None:
    """Give the state of the model with the averages in it; with buffers and tied names, it loads as one."""
    if run.average is None:
        return None
    averages = run.average.state_dict()
    of = {p: averages[name] for name, p in run.model.named_parameters() if name in averages}
    named = run.model.named_parameters(remove_duplicate=False)
    state = {name: value for name, value in run.model.state_dict().items() if isinstance(value, Tensor)}
    return {**state, **{name: of[parameter] for name, parameter in named if parameter in of}}


def expected_bytes(run: Run) -> int:
    """Give about how large a bundle of the run will be."""
    model = run.model
    learned = model.state_dict(), unsaved_buffers(model), _outside(run)
    states = *learned, run.optimizer.state_dict(), _averaged(run)
    return num_bytes_of(states) + moments_to_come_bytes(run.optimizer)


def load_parts(run: Run, parts: Mapping[str, Any], *, loader: Loader | None, with_modes: bool) -> None:
    """Put a run's state in place; everything is compared before the first value changes.

    Without `with_modes`, what is frozen or in evaluation stays as it is.
    """
    _check(run, parts)
    if loader is not None and parts["data"] is not None:
        _check_seed(run, loader, parts["data"])
        loader.load_state_dict(parts["data"])
        run.handing.forget()
    load_weights(run, parts)
    if run.watch is not None:
        run.watch.forget(run.updates, row=parts["trainer"].get("skipped_in_a_row", 0))
    run.history = list(parts["history"])
    run.num_rollbacks = parts["trainer"].get("num_rollbacks", 0)
    run.place = Place(**{name: parts["trainer"][name] for name in asdict(run.place)})
    run.hooks.load_state_dict(parts["hooks"])
    if with_modes:
        restore_modes(run.model, parts["trainer"]["modes"])
    load_graph_state(run.model, parts["graphs"], run.device)
    RngState.from_state_dict(parts["rng"], run.device).restore()


def load_weights(run: Run, parts: Mapping[str, Any]) -> None:
    """Put what was learned and is carried in place; data, history and randomness stay as they are."""
    run.model.load_state_dict(parts["model"])
    run.optimizer.load_state_dict(parts["optimizer"])
    run.train_step.load_state_dict(parts["step"])
    if run.average is not None:
        run.average.load_state_dict(parts["average"] or dict(run.model.named_parameters()))
    # Older bundles have none of these.
    saved = parts.get("outside") or {}
    for name, parameter in _outside(run).items():
        if name in saved:
            parameter.data.copy_(saved[name])
    restore_buffers(run.model, parts.get("buffers") or {}, run.device)
    load_carried_values(run.model, parts.get("graphs") or {}, run.device)


def _kinds(run: Run) -> dict[str, str]:
    """Name what cannot be exchanged in the middle of a run."""
    return {
        "optimizer": type(run.optimizer).__name__,
        "precision": run.evaluator.precision,
        "schedule": "no schedule" if run.schedule is None else type(run.schedule).__name__,
    }


def _check(run: Run, parts: Mapping[str, Any]) -> None:
    missing = [name for name in PARTS if name not in parts]
    if missing:
        raise TrainError(
            f"the bundle has no part {missing[0]!r}, so it was not saved by a trainer. "
            "Give the checkpoint_dir of a run, or load its model.fdl with load_checkpoint."
        )
    _check_model(parts["model"], run.model.state_dict())
    for name, own in _kinds(run).items():
        saved = parts["trainer"][name]
        if saved != own:
            raise TrainError(
                f"the run was saved with {name} {saved!r}, and this trainer has {own!r}. Nothing was loaded. "
                f"Resume with the {name} that it had, or choose another checkpoint_dir."
            )
    sizes = [
        [len(group["params"]) for group in groups]
        for groups in (parts["optimizer"]["param_groups"], run.optimizer.param_groups)
    ]
    if sizes[0] != sizes[1]:
        raise TrainError(
            f"the saved optimizer has groups of {sizes[0]} parameters, this one of {sizes[1]}. Nothing was "
            "loaded. Build the optimizer with the groups that it had. Groups that a hook adds cannot be "
            "resumed: give all of them from the start, with groups(model, {…}), and freeze and thaw by Phase."
        )
    _check_outside(run, parts.get("outside") or {})
    # Older bundles do not say.
    _check_order(parts["trainer"].get("parameters"), _names_of_groups(run))


def _check_seed(run: Run, loader: Loader, saved: Mapping[str, Any]) -> None:
    """Name the seed of the trainer where its loader has another than it had; a loader names its own."""
    seed = saved.get("seed")
    if run.feeding.makes_loader and seed is not None and seed != loader.seed:
        raise CursorError(
            f"the order of the data was drawn with seed {seed}, and this is Trainer(seed={loader.seed}). "
            f"Nothing was loaded. Give Trainer(seed={seed}), or choose another checkpoint_dir."
        )


def _outside(run: Run) -> dict[str, Tensor]:
    """Give what the optimizer holds and the model does not, such as weights of losses, by group and place."""
    inside = set(run.model.parameters())
    return {
        f"{group}.{place}": parameter
        for group, held in enumerate(run.optimizer.param_groups)
        for place, parameter in enumerate(held["params"])
        if parameter not in inside
    }


def _check_outside(run: Run, saved: Mapping[str, Tensor]) -> None:
    for name, parameter in _outside(run).items():
        if name in saved and saved[name].shape != parameter.shape:
            group, place = name.split(".")
            raise TrainError(
                f"parameter {place} of group {group} of the optimizer, which is none of the model's, has "
                f"shape {_shape(parameter)}, and it had {_shape(saved[name])} when it was saved. Nothing was "
                "loaded. Give the optimizer the parameters that it had."
            )


def _names_of_groups(run: Run) -> list[list[str]]:
    """Name the parameters of each group; an optimizer's state knows them by their place alone."""
    names = {parameter: name for name, parameter in run.model.named_parameters()}
    return [
        [names.get(parameter, "") for parameter in group["params"]] for group in run.optimizer.param_groups
    ]


def _check_order(saved: list[list[str]] | None, own: list[list[str]]) -> None:
    for group, (before, now) in enumerate(zip(saved or [], own)):
        for place, (then, here) in enumerate(zip(before, now)):
            if then != here:
                raise TrainError(
                    f"parameter {place} of group {group} of the optimizer is {_called(here)}, and it was "
                    f"{_called(then)} when it was saved: they would get each other's moments. Nothing was "
                    "loaded. Give the optimizer its parameters in the order and the groups that they had."
                )


def _called(name: str) -> str:
    return repr(name) if name else "none of the model's"


def _check_model(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    lacking = [name for name in own if name not in saved]
    unknown = [name for name in saved if name not in own]
    shapes = [name for name in own if name in saved and not _fits(saved[name], own[name])]
    if not lacking and not unknown and not shapes:
        tensors = {name: name for name, value in own.items() if isinstance(value, Tensor)}
        check_values_fit(tensors, saved, own, "the saved run")
        return
    if shapes:
        name = shapes[0]
        what = f"{name!r} has shape {_shape(saved[name])} there and {_shape(own[name])} here."
    elif lacking:
        what = f"it has no {lacking[0]!r}. {suggestion(lacking[0], saved, known_as='names')}"
    else:
        what = (
            f"it has {unknown[0]!r}, which this model lacks. {suggestion(unknown[0], own, known_as='names')}"
        )
    raise TrainError(
        f"the saved run belongs to another model: {what} Nothing was loaded. "
        "Resume with the model that was saved, or choose another checkpoint_dir."
    )


def _fits(saved: Any, own: Any) -> bool:
    """Say whether shapes agree; a lazy parameter takes that of the first value that it gets."""
    return _shape(saved) == _shape(own) if not is_lazy(own) else isinstance(saved, Tensor)


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, Tensor) else None
