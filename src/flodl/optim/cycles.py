"""Schedules that go up and down: one cycle over the whole run, or repeated triangles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from ._arguments import check_integer, check_number, explained, step_index
from .schedule import StepSchedule

if TYPE_CHECKING:
    from torch import Tensor


@explained
@dataclass(frozen=True)
class OneCycleLR(StepSchedule):
    """Increase linearly from max/25 to `max`, then decrease along half a cosine to max/25 at step `total`.

    The increase takes round(warmup_frac · total) steps. The cycle ends where it started, unlike that of
    `torch.optim.lr_scheduler.OneCycleLR`, which ends ten thousand times lower.

    >>> schedule = OneCycleLR(0.01, total=100)
    >>> [round(schedule.lr(step), 6) for step in (0, 30, 100)]
    [0.0004, 0.01, 0.0004]
    """

    max: float
    total: int
    warmup_frac: float = 0.3

    def __post_init__(self) -> None:
        check_number(
            "OneCycleLR", "max", self.max, above=0, hint="Pass the highest learning rate, for example 0.01."
        )
        hint = "Pass the number of optimizer updates of the whole cycle."
        check_integer("OneCycleLR", "total", self.total, at_least=1, hint=hint)
        hint = "It is the fraction of the cycle that increases: 0.3 is 30 %."
        check_number("OneCycleLR", "warmup_frac", self.warmup_frac, at_least=0, at_most=1, hint=hint)

    @classmethod
    def with_warmup_frac(cls, max: float, total: int, f: float) -> Self:
        """Return a cycle that increases during the first fraction `f` of its steps.

        >>> OneCycleLR.with_warmup_frac(0.01, 100, 0.1).warmup_steps
        10
        """
        return cls(max, total, f)

    @property
    def warmup_steps(self) -> int:
        """The number of increasing steps, with halves rounded up."""
        return math.floor(self.warmup_frac * self.total + 0.5)

    def lr(self, step: int) -> float:
        step = min(step_index(self, step), self.total)
        warm, low = self.warmup_steps, self.max / 25
        if step < warm:
            return low + step / warm * (self.max - low)
        fallen = (step - warm) / max(self.total - warm, 1)
        return low + 0.5 * (self.max - low) * (1 + math.cos(math.pi * fallen))

    def lr_tensor(self, step: Tensor) -> Tensor:
        import torch

        at = step.clamp(max=self.total).to(torch.float64)
        warm, low = self.warmup_steps, self.max / 25
        rising = low + at / max(warm, 1) * (self.max - low)
        fallen = (at - warm) / max(self.total - warm, 1)
        falling = low + 0.5 * (self.max - low) * (1 + torch.cos(math.pi * fallen))
        return torch.where(at < warm, rising, falling)


@explained
@dataclass(frozen=True)
class CyclicLR(StepSchedule):
    """Increase linearly from `base` to `max` in `up` steps, decrease in `down` steps, and repeat.

    `down` defaults to `up`.

    >>> schedule = CyclicLR(0.001, 0.01, 10)
    >>> [round(schedule.lr(step), 6) for step in (0, 5, 10, 15, 20)]
    [0.001, 0.0055, 0.01, 0.0055, 0.001]
    """

    base: float
    max: float
    up: int
    down: int | None = None

    def __post_init__(self) -> None:
        check_number("CyclicLR", "base", self.base, at_least=0, hint="Pass the lowest learning rate.")
        hint = "Pass the highest learning rate, above base."
        check_number("CyclicLR", "max", self.max, above=self.base, hint=hint)
        check_integer("CyclicLR", "up", self.up, at_least=1, hint="It counts the steps from base to max.")
        if self.down is not None:
            check_integer(
                "CyclicLR", "down", self.down, at_least=1, hint="It counts the steps from max back to base."
            )

    @classmethod
    def asymmetric(cls, base: float, max: float, up: int, down: int) -> Self:
        """Return a cycle that increases and decreases at different speeds.

        >>> schedule = CyclicLR.asymmetric(0.0, 1.0, up=2, down=4)
        >>> [schedule.lr(step) for step in range(7)]
        [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
        """
        return cls(base, max, up, down)

    def lr(self, step: int) -> float:
        down = self.down or self.up
        position = step_index(self, step) % (self.up + down)
        height = position / self.up if position <= self.up else (self.up + down - position) / down
        return self.base + (self.max - self.base) * height

    def lr_tensor(self, step: Tensor) -> Tensor:
        import torch

        down = self.down or self.up
        position = (step % (self.up + down)).to(torch.float64)
        rising, falling = position / self.up, (self.up + down - position) / down
        height = torch.where(position <= self.up, rising, falling)
        return self.base + (self.max - self.base) * height
