"""Warm-up: a straight rise in front of any other schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flodl.core import ScheduleError

from ._arguments import number, step_index, whole
from .schedule import Schedule, StepSchedule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class WarmupScheduler(StepSchedule):
    """Rise to `target` in `warm` steps, then follow `inner` from its step 0.

    target·(step + 1)/warm before step `warm`, so that the first update already learns and the last
    one of the rise has the full target; inner.lr(step − warm) afterwards.

    >>> from flodl.optim import CosineScheduler
    >>> schedule = WarmupScheduler(CosineScheduler(0.1, 0.001, 90), target=0.1, warm=10)
    >>> [round(schedule.lr(step), 6) for step in (0, 9, 10, 100)]
    [0.01, 0.1, 0.1, 0.001]
    """

    inner: Schedule
    target: float
    warm: int

    def __post_init__(self) -> None:
        if isinstance(self.inner, type) or not callable(getattr(self.inner, "lr", None)):
            raise ScheduleError(
                f"WarmupScheduler: inner={self.inner!r} has no method lr(step). "
                "Give the schedule to follow after the warm-up, for example CosineScheduler(0.1, 0.001, 90)."
            )
        hint = "Give the learning rate at the end of the rise, usually the inner schedule's first."
        number("WarmupScheduler", "target", self.target, above=0, hint=hint)
        hint = "It counts the steps of the rise; 0 is no warm-up."
        whole("WarmupScheduler", "warm", self.warm, at_least=0, hint=hint)

    def lr(self, step: int) -> float:
        step = step_index(self, step)
        if step < self.warm:
            return self.target * (step + 1) / self.warm
        return self.inner.lr(step - self.warm)

    def lr_tensor(self, step: Tensor) -> Tensor:
        import torch

        inner_lr_tensor = getattr(self.inner, "lr_tensor", None)
        if inner_lr_tensor is None:
            raise ScheduleError(
                f"WarmupScheduler: the inner {type(self.inner).__name__} has no lr_tensor(step), so it "
                "cannot be computed on a device. Use lr(step), or an inner schedule based on StepSchedule."
            )
        after: Tensor = inner_lr_tensor((step - self.warm).clamp(min=0))
        if self.warm == 0:
            return after
        rising = self.target * (step + 1).to(torch.float64) / self.warm
        return torch.where(step < self.warm, rising, after)
