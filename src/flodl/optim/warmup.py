"""A linear warm-up before any other schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flodl.core import ScheduleError

from ._arguments import check_integer, check_number, explained, step_index
from .schedule import Schedule, StepSchedule

if TYPE_CHECKING:
    from torch import Tensor


@explained
@dataclass(frozen=True)
class WarmupScheduler(StepSchedule):
    """Increase linearly to `target` in `warm` steps, then follow `inner` from its step 0.

    The rate is target·(step + 1)/warm before step `warm`, so the first update has a rate above 0 and the last
    update of the warm-up has the full target; afterwards it is inner.lr(step − warm).

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
                "Pass the schedule to follow after the warm-up, for example CosineScheduler(0.1, 0.001, 90)."
            )
        hint = "Pass the learning rate at the end of the warm-up, usually the inner schedule's first."
        check_number("WarmupScheduler", "target", self.target, above=0, hint=hint)
        hint = "It is the number of warm-up steps; 0 disables the warm-up."
        check_integer("WarmupScheduler", "warm", self.warm, at_least=0, hint=hint)

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
