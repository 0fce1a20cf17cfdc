"""The hooks that a callback may have, and the part of the trainer that callbacks use."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn

# The arguments of each hook; a callback takes any of them by name.
HOOKS: dict[str, tuple[str, ...]] = {
    "on_start": ("trainer",),
    "on_resume": ("trainer", "epoch", "own_folder"),
    "on_epoch_start": ("trainer", "epoch"),
    "on_step_end": ("trainer", "epoch", "step", "batch", "loss"),
    "on_evaluate_end": ("trainer", "epoch", "metrics"),
    "on_epoch_end": ("trainer", "epoch", "metrics"),
    "on_save": ("trainer", "step", "metrics", "path"),
    "on_end": ("trainer", "result"),
}


class TrainerControls(Protocol):
    """What the callbacks of flodl use of a trainer."""

    model: nn.Module

    @property
    def epochs(self) -> int:
        """The number of epochs done."""

    @property
    def updates(self) -> int:
        """The number of optimizer updates done."""

    @property
    def history(self) -> list[dict[str, Any]]:
        """A row of metrics for each epoch."""

    def stop(self, reason: str = "stopped") -> None:
        """End the training after the current update."""

    def scale_lr(self, factor: float, *, least: float = 0.0) -> None:
        """Multiply the learning rate by a factor."""
