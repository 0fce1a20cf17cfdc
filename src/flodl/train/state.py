"""Everything that a resumed run needs: gathered into the parts of a bundle, and put back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from flodl.core import TrainError
from flodl.data import Loader

from .randomness import random_state, restore_random_state

if TYPE_CHECKING:
    from .trainer import Trainer


def parts_of(trainer: Trainer) -> dict[str, Any]:
    """Give the state of a run between two updates."""
    loader = trainer._loader
    return {
        "model": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "step": trainer.train_step.state_dict(),
        "rng": random_state(trainer.device),
        "data": None if loader is None else loader.state_dict(),
        "history": trainer.history,
        "trainer": {"open_row": trainer._open_row, "epoch_step": trainer._epoch_step},
        "average": None if trainer.average is None else trainer.average.state_dict(),
        "hooks": trainer._hooks.state_dict(),
        "config": asdict(trainer._settings),
    }


def load_parts(trainer: Trainer, parts: Mapping[str, Any], *, loader: Loader | None) -> None:
    """Put a run's state in place; without a loader, data, history and randomness stay as they are."""
    _load_model(trainer.model, parts["model"])
    trainer.optimizer.load_state_dict(parts["optimizer"])
    trainer.train_step.load_state_dict(parts["step"])
    if trainer.average is not None and parts["average"] is not None:
        trainer.average.load_state_dict(parts["average"])
    if loader is not None:
        loader.load_state_dict(parts["data"])
        trainer.history = list(parts["history"])
        for row in trainer.history:
            trainer._record({name: value for name, value in row.items() if name != "epoch"})
        trainer._open_row = parts["trainer"]["open_row"]
        trainer._epoch_step = parts["trainer"]["epoch_step"]
        trainer._hooks.load_state_dict(parts["hooks"])
        restore_random_state(parts["rng"], trainer.device)
    if trainer._finite is not None:
        trainer._finite.forget()


def _load_model(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        told = " ".join(str(error).split())
        raise TrainError(
            f"the saved run belongs to another model: {told[:400]} Resume with the model that was saved, or "
            "choose another checkpoint_dir."
        ) from error
