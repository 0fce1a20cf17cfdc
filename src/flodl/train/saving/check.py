"""Check a saved run against the program that resumes it, before anything of it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn.parameter import is_lazy

from flodl.checkpoint import check_loadable
from flodl.core import TrainError
from flodl.core.paths import suggestion
from flodl.core.rng_state import RngState
from flodl.graph import check_graph_state
from flodl.monitor.run_settings.machine import versions
from flodl.monitor.run_settings.modules import describe_modules

from ..record.changes import changed_modules
from ..session import Session
from .buffers import shares_memory
from .changes.changed_record import comparable
from .changes.differences import MAX_NAMES, changed_structure
from .changes.label_names import check_label_names
from .check_optimizer import check_groups, check_states
from .check_types import check_types

PARTS = ("model", "optimizer", "step", "rng", "data", "history", "trainer", "average", "hooks", "graphs")
_SAVED = "the saved run"


def check_saved_run(
    session: Session, parts: Mapping[str, Any], *, allow_different_structure: bool = False
) -> None:
    """Raise if a saved run does not match this one, or was not saved by a trainer; nothing changes."""
    missing = [name for name in PARTS if name not in parts]
    if missing:
        raise TrainError(
            f"the bundle has no part {missing[0]!r}, so it was not saved by a trainer. "
            "Pass the checkpoint_dir of a run, or load its model.fdl with load_checkpoint."
        )
    check_types(parts)
    _check_model(parts["model"], session.model.state_dict())
    for name, own in fixed_settings(session).items():
        saved = parts["trainer"][name]
        if saved != own:
            raise TrainError(
                f"the run was saved with {name} {saved!r}, and this trainer uses {own!r}. Nothing was "
                f"loaded. Resume with the original {name}, or choose a different checkpoint_dir."
            )
    check_label_names(parts["trainer"].get("labels"), session.model)
    check_groups(parts["optimizer"], session.optimizer)
    _check_outside(session, parts.get("outside") or {})
    # Older bundles have no names.
    _check_order(parts["trainer"].get("parameters"), parameter_names(session))
    check_states(parts["optimizer"], session.optimizer)
    if session.average is not None and parts["average"]:
        _check_average(parts["average"], session.average.state_dict())
    check_graph_state(session.model, parts["graphs"])
    _check_random_state(session, parts["rng"])
    if not allow_different_structure:
        _check_structure(session, parts["trainer"], parts.get("config") or {})


def fixed_settings(session: Session) -> dict[str, str]:
    """Return the settings that cannot change in the middle of a run."""
    return {
        "optimizer": type(session.optimizer).__name__,
        "precision": session.train_step.settings.precision,
        "schedule": "no schedule" if session.schedule is None else type(session.schedule).__name__,
    }


def outside_model(session: Session) -> dict[str, Tensor]:
    """Return the parameters of the optimizer that are not in the model, by group and index."""
    inside = set(session.model.parameters())
    return {
        f"{group}.{index}": parameter
        for group, held in enumerate(session.optimizer.param_groups)
        for index, parameter in enumerate(held["params"])
        if parameter not in inside
    }


def parameter_names(session: Session) -> list[list[str]]:
    """Return the parameter names of each group; the state of an optimizer knows them by index only."""
    names = {parameter: name for name, parameter in session.model.named_parameters()}
    return [
        [names.get(parameter, "") for parameter in group["params"]]
        for group in session.optimizer.param_groups
    ]


def _check_structure(session: Session, saved: Mapping[str, Any], recorded: Mapping[str, Any]) -> None:
    for difference in changed_structure(session.model, saved):
        raise TrainError(
            f"{difference}. {_different_modules(session, recorded)}Nothing was loaded. Build it as it was "
            "saved, or choose a different checkpoint_dir. To continue with the same weights nevertheless, "
            "pass allow_different_structure=True. The code of its functions and of your module classes "
            "counts."
        )


def _different_modules(session: Session, recorded: Mapping[str, Any]) -> str:
    """Name the modules whose class or settings differ from the record of the saved run, as far as known."""
    own = {"model": {"modules": describe_modules(session.model)}, "versions": versions()}
    now, before = comparable(own, recorded)
    lines = list(changed_modules(now["model"], before.get("model") or {}))
    more = f"; and {len(lines) - MAX_NAMES} more" if len(lines) > MAX_NAMES else ""
    return f"What differs: {'; '.join(lines[:MAX_NAMES])}{more}. " if lines else ""


def _check_random_state(session: Session, saved: Mapping[str, Any]) -> None:
    try:
        RngState.from_state_dict(saved, session.device).check()
    except Exception as error:  # each generator has its own kinds of errors
        raise TrainError(
            f"the part 'rng' of the saved run is not the state of random number generators: "
            f"{type(error).__name__}: {error}. Nothing was loaded. Use another bundle."
        ) from error


def _check_outside(session: Session, saved: Mapping[str, Tensor]) -> None:
    outside = {name: own for name, own in outside_model(session).items() if name in saved}
    for name, parameter in outside.items():
        if saved[name].shape != parameter.shape:
            group, index = name.split(".")
            raise TrainError(
                f"parameter {index} of group {group} of the optimizer, which is not in the model, has "
                f"shape {_shape(parameter)}, and it was saved with {_shape(saved[name])}. Nothing was "
                "loaded. Build the optimizer with the original parameters."
            )
    check_loadable(saved, outside, _SAVED)


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


def _check_average(saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    missing = [name for name in own if name not in saved]
    if missing:
        raise TrainError(
            f"the saved average has no {missing[0]!r}: it belongs to a different model. Nothing was loaded."
        )
    check_loadable(saved, own, "the saved average")


def _check_model(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    missing = [name for name in own if name not in saved]
    unknown = [name for name in saved if name not in own]
    shapes = [name for name in own if name in saved and not _fits(saved[name], own[name])]
    if not missing and not unknown and not shapes:
        tensors = {name: value for name, value in own.items() if isinstance(value, Tensor)}
        # Lazy parameters have no shape yet; buffers whose elements share memory are replaced.
        check_loadable(
            saved,
            {
                name: value.clone() if shares_memory(value) else value
                for name, value in tensors.items()
                if not is_lazy(value)
            },
            _SAVED,
        )
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
