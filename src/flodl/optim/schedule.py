"""What a schedule is: the learning rate as a pure function of the step.

A step is one optimizer update, counted from 0, whatever the number of ranks or the accumulation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ._preview import preview

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class Schedule(Protocol):
    """Anything that gives a learning rate for a step."""

    def lr(self, step: int, /) -> float:
        """Give the learning rate of update number `step`, the first being 0."""
        ...


class StepSchedule(ABC):
    """The base of the schedules that depend on the step alone: a frozen value with one formula, twice.

    `lr` computes on the host and `lr_tensor` the same with torch operations, so that a captured
    training step can read its step from the device and never wait for the host.
    """

    @abstractmethod
    def lr(self, step: int) -> float:
        """Give the learning rate of update number `step`, the first being 0."""

    @abstractmethod
    def lr_tensor(self, step: Tensor) -> Tensor:
        """Give the learning rates for a tensor of steps, as float64 on the same device."""

    def preview(self, total_steps: int, *, width: int = 60) -> str:
        """Draw the schedule as text, with its first, highest and last value.

        >>> from flodl.optim import CyclicLR
        >>> print(CyclicLR(0.001, 0.01, 10).preview(40))
        ▂▂▃▄▄▅▅▆▇▇█▇▇▆▅▅▄▄▃▂▂▂▃▄▄▅▅▆▇▇█▇▇▆▅▅▄▄▃▂
        step 0: 0.001 · highest 0.01 at step 10 · step 39: 0.0019
        """
        return preview(type(self).__name__, self.lr, total_steps, width=width)
