"""Everything that a resumed run needs: gathered into the parts of a bundle, and put back, all or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from flodl.core import TrainError
from flodl.core.paths import suggestion
from flodl.data import Loader

from .carried import remember, remembered
from .modes import modes_of, restore_modes
from .randomness import random_state, restore_random_state

if TYPE_CHECKING:
    from .trainer import Trainer

PARTS = ("model", "optimizer", "step", "rng", "data", "history", "trainer", "average", "hooks", "graphs")


@dataclass
class Place:
    """Where a run stands within its epoch: batches done, a row that waits for its evaluation, the update at
    which the last row was complete."""

    epoch_step: int = 0
    open_row: dict[str, Any] | None = None
    measured_at: int | None = None


def parts_of(trainer: Trainer) -> dict[str, Any]:
    """Give the state of a run between two updates."""
    loader = trainer._feeding.training
    return {
        "model": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "step": trainer.train_step.state_dict(),
        "rng": random_state(trainer.device),
        "data": None if loader is None else loader.state_dict(),
        "history": trainer.history,
        "trainer": {**_kinds(trainer), **asdict(trainer._place), "modes": modes_of(trainer.model)},
        "average": None if trainer.average is None else trainer.average.state_dict(),
        "hooks": trainer._hooks.state_dict(),
        "graphs": remembered(trainer.model),
        "config": asdict(trainer._settings),
    }


def load_parts(trainer: Trainer, parts: Mapping[str, Any], *, loader: Loader | None) -> None:
    """Put a run's state in place; everything is compared before the first value changes."""
    _check(trainer, parts)
    if loader is not None and parts["data"] is not None:
        loader.load_state_dict(parts["data"])
    load_weights(trainer, parts)
    trainer.history = list(parts["history"])
    trainer._place = Place(**{name: parts["trainer"][name] for name in asdict(trainer._place)})
    trainer._hooks.load_state_dict(parts["hooks"])
    restore_modes(trainer.model, parts["trainer"]["modes"])
    remember(trainer.model, parts["graphs"], trainer.device)
    restore_random_state(parts["rng"], trainer.device)


def load_weights(trainer: Trainer, parts: Mapping[str, Any]) -> None:
    """Put what was learned in place; data, history and randomness stay as they are."""
    trainer.model.load_state_dict(parts["model"])
    trainer.optimizer.load_state_dict(parts["optimizer"])
    trainer.train_step.load_state_dict(parts["step"])
    if trainer.average is not None:
        trainer.average.load_state_dict(parts["average"] or dict(trainer.model.named_parameters()))
    if trainer._finite is not None:
        trainer._finite.forget()


def _kinds(trainer: Trainer) -> dict[str, str]:
    """Name what cannot be exchanged in the middle of a run."""
    return {
        "optimizer": type(trainer.optimizer).__name__,
        "precision": trainer.precision,
        "schedule": "no schedule" if trainer._schedule is None else type(trainer._schedule).__name__,
    }


def _check(trainer: Trainer, parts: Mapping[str, Any]) -> None:
    missing = [name for name in PARTS if name not in parts]
    if missing:
        raise TrainError(
            f"the bundle has no part {missing[0]!r}, so it was not saved by a trainer. "
            "Give the checkpoint_dir of a run, or load its model.fdl with load_checkpoint."
        )
    _check_model(parts["model"], trainer.model.state_dict())
    for name, own in _kinds(trainer).items():
        saved = parts["trainer"][name]
        if saved != own:
            raise TrainError(
                f"the run was saved with {name} {saved!r}, and this trainer has {own!r}. Nothing was loaded. "
                f"Resume with the {name} that it had, or choose another checkpoint_dir."
            )
    sizes = [
        [len(group["params"]) for group in groups]
        for groups in (parts["optimizer"]["param_groups"], trainer.optimizer.param_groups)
    ]
    if sizes[0] != sizes[1]:
        raise TrainError(
            f"the saved optimizer has groups of {sizes[0]} parameters, this one of {sizes[1]}. Nothing was "
            "loaded. Build the optimizer with the groups that it had."
        )


def _check_model(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    lacking = [name for name in own if name not in saved]
    unknown = [name for name in saved if name not in own]
    shapes = [name for name in own if name in saved and _shape(saved[name]) != _shape(own[name])]
    if not lacking and not unknown and not shapes:
        return
    if shapes:
        name = shapes[0]
        what = f"{name!r} has shape {_shape(saved[name])} there and {_shape(own[name])} here"
    elif lacking:
        what = f"it has no {lacking[0]!r}. {suggestion(lacking[0], saved, known_as='names')}"
    else:
        what = (
            f"it has {unknown[0]!r}, which this model lacks. {suggestion(unknown[0], own, known_as='names')}"
        )
    raise TrainError(
        f"the saved run belongs to another model: {what.rstrip('.')}. Nothing was loaded. "
        "Resume with the model that was saved, or choose another checkpoint_dir."
    )


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, Tensor) else None
