"""Schedules that decay: in steps, at milestones, by a factor each step, along half a cosine."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flodl.core import ScheduleError

from ._arguments import check_integer, check_number, explained, step_index
from .schedule import StepSchedule

if TYPE_CHECKING:
    from torch import Tensor

_BASE_HINT = "Pass the learning rate to start from, for example 0.1."


@explained
@dataclass(frozen=True)
class StepDecay(StepSchedule):
    """Multiply by `gamma` every `step_size` steps: base · gamma^⌊step/step_size⌋.

    >>> schedule = StepDecay(0.1, step_size=30, gamma=0.1)
    >>> [round(schedule.lr(step), 6) for step in (0, 29, 30, 60)]
    [0.1, 0.1, 0.01, 0.001]
    """

    base: float
    step_size: int
    gamma: float

    def __post_init__(self) -> None:
        check_number("StepDecay", "base", self.base, above=0, hint=_BASE_HINT)
        check_integer(
            "StepDecay",
            "step_size",
            self.step_size,
            at_least=1,
            hint="It is the number of steps between two decays.",
        )
        _check_gamma("StepDecay", self.gamma)

    def lr(self, step: int) -> float:
        return self.base * _power(self.gamma, step_index(self, step) // self.step_size)

    def lr_tensor(self, step: Tensor) -> Tensor:
        return self.base * _power_tensor(self.gamma, step // self.step_size)


@explained
@dataclass(frozen=True)
class ExponentialLR(StepSchedule):
    """Multiply by `gamma` at every step: base · gamma^step.

    >>> [round(ExponentialLR(0.1, 0.5).lr(step), 6) for step in (0, 1, 2)]
    [0.1, 0.05, 0.025]
    """

    base: float
    gamma: float

    def __post_init__(self) -> None:
        check_number("ExponentialLR", "base", self.base, above=0, hint=_BASE_HINT)
        _check_gamma("ExponentialLR", self.gamma)

    def lr(self, step: int) -> float:
        return self.base * _power(self.gamma, step_index(self, step))

    def lr_tensor(self, step: Tensor) -> Tensor:
        return self.base * _power_tensor(self.gamma, step)


@explained
@dataclass(frozen=True)
class MultiStepLR(StepSchedule):
    """Multiply by `gamma` at each milestone: base · gamma^(number of milestones ≤ step).

    The milestones may be in any order; a repeated milestone counts twice.

    >>> schedule = MultiStepLR(0.1, milestones=[80, 30], gamma=0.1)
    >>> [round(schedule.lr(step), 6) for step in (29, 30, 80)]
    [0.1, 0.01, 0.001]
    """

    base: float
    milestones: Sequence[int]
    gamma: float

    def __post_init__(self) -> None:
        check_number("MultiStepLR", "base", self.base, above=0, hint=_BASE_HINT)
        milestones = list(self.milestones) if isinstance(self.milestones, Iterable) else []
        if not milestones:
            raise ScheduleError(
                f"MultiStepLR: milestones={self.milestones!r}, expected at least one step. "
                "Pass the steps at which the learning rate decays, for example [30, 80]."
            )
        for milestone in milestones:
            hint = "A milestone is a step at which the learning rate decays."
            check_integer("MultiStepLR", "milestone", milestone, at_least=0, hint=hint)
        _check_gamma("MultiStepLR", self.gamma)
        object.__setattr__(self, "milestones", tuple(sorted(milestones)))

    def lr(self, step: int) -> float:
        return self.base * _power(self.gamma, bisect_right(self.milestones, step_index(self, step)))

    def lr_tensor(self, step: Tensor) -> Tensor:
        import torch

        # One comparison per milestone: a tensor of milestones would need a copy from the host, which a
        # captured step must not do.
        passed = torch.zeros_like(step, dtype=torch.int64)
        for milestone in self.milestones:
            passed = passed + (step >= milestone)
        return self.base * _power_tensor(self.gamma, passed)


@explained
@dataclass(frozen=True)
class CosineScheduler(StepSchedule):
    """Decay from `base` to `min` along half a cosine over `total` steps, then stay at `min`.

    min + ½(base − min)(1 + cos πt) with t = step/total, clipped to 1. It is computed as
    min + (base − min)·sin²(π(1 − t)/2), which stays precise where the cosine is near −1.

    >>> schedule = CosineScheduler(0.1, min=0.001, total=90)
    >>> [round(schedule.lr(step), 6) for step in (0, 45, 90, 200)]
    [0.1, 0.0505, 0.001, 0.001]
    """

    base: float
    min: float
    total: int

    def __post_init__(self) -> None:
        check_number("CosineScheduler", "base", self.base, above=0, hint=_BASE_HINT)
        hint = "Pass the learning rate to end at, no higher than base."
        check_number("CosineScheduler", "min", self.min, at_least=0, at_most=self.base, hint=hint)
        hint = "Pass the number of optimizer updates that the decay takes."
        check_integer("CosineScheduler", "total", self.total, at_least=1, hint=hint)

    def lr(self, step: int) -> float:
        left = max(self.total - step_index(self, step), 0) / self.total
        return self.min + (self.base - self.min) * math.sin(math.pi / 2 * left) ** 2

    def lr_tensor(self, step: Tensor) -> Tensor:
        import torch

        left = (self.total - step).clamp(min=0).to(torch.float64) / self.total
        return self.min + (self.base - self.min) * torch.sin(math.pi / 2 * left) ** 2


def _check_gamma(owner: str, gamma: float) -> None:
    hint = "0.1 divides the learning rate by ten; above 1 it increases."
    check_number(owner, "gamma", gamma, above=0, hint=hint)


def _power(gamma: float, exponent: int) -> float:
    try:
        return gamma**exponent
    except OverflowError:
        # Torch returns infinity here; the schedule bridge raises with the step.
        return math.inf


def _power_tensor(gamma: float, exponent: Tensor) -> Tensor:
    import torch

    return torch.pow(gamma, exponent.to(torch.float64))
