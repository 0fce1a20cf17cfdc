"""The learning rate of a run, read and changed with or without a schedule."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from flodl.core import TrainError
from flodl.optim import ScheduleBridge


def learning_rate(optimizer: Optimizer) -> float:
    """Give the rate of the first group."""
    return float(optimizer.param_groups[0]["lr"])


def optimizer_settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Give what each group is set to, as it is now: a number that is on a device is read."""
    return [
        {
            name: value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
            for name, value in group.items()
            if name not in ("params", "param_names")
        }
        for group in optimizer.param_groups
    ]


def follows_loss(bridge: ScheduleBridge | None) -> bool:
    """Say whether a schedule follows a metric and is to be fed the loss."""
    watcher = None if bridge is None else bridge.watcher
    if getattr(watcher, "mode", "min") == "max":
        raise TrainError(
            f"schedule={watcher!r} waits for a metric to rise, and a trainer hands it the loss. "
            "Use mode='min', or for another metric the hook ReduceOnPlateau('eval_accuracy', mode='max')."
        )
    return watcher is not None


def begin_anew(bridge: ScheduleBridge | None) -> None:
    """Let a schedule that follows a metric forget what it saw of another run."""
    begin = None if bridge is None else getattr(bridge.watcher, "reset", None)
    if bridge is not None and callable(begin):
        begin()
        bridge.set_step(bridge.current_step)


def scale_rates(optimizer: Optimizer, bridge: ScheduleBridge | None, factor: float, least: float) -> None:
    """Multiply every rate by a factor, on top of a schedule where there is one; none goes below `least`."""
    if not factor > 0:
        raise TrainError(f"scale_lr({factor}). Give a factor above 0.")
    if bridge is not None:
        lowest = least / bridge.lr if bridge.lr > 0 else 0.0
        bridge.scale(bridge.lr_scale * max(factor, min(lowest, 1.0)))
        return
    for group in optimizer.param_groups:
        rate = float(group["lr"])
        scaled = max(rate * factor, min(least, rate))
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(scaled)
        else:
            group["lr"] = scaled
