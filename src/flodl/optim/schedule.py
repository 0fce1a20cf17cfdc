"""The interface of schedules: the learning rate as a pure function of the step.

A step is one optimizer update, counted from 0, regardless of gradient accumulation and the number of ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from flodl.core.usage.calls import ScheduleCallError, explain_methods

from ._preview import preview
from ._torch_habits import TorchHabits

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class Schedule(Protocol):
    """Any object that returns a learning rate for a step."""

    def lr(self, step: int, /) -> float:
        """Return the learning rate of update number `step`, starting at 0."""
        ...


@explain_methods(
    ScheduleCallError, examples={"preview": "Write schedule.preview(1000)."}, without=("lr", "lr_tensor")
)
class StepSchedule(TorchHabits, ABC):
    """The base class of schedules that depend only on the step: a frozen dataclass with one formula.

    `lr` computes it on the host, and `lr_tensor` with torch operations, so that a captured training step can
    read the step number on the device.
    """

    @abstractmethod
    def lr(self, step: int) -> float:
        """Return the learning rate of update number `step`, starting at 0."""

    @abstractmethod
    def lr_tensor(self, step: Tensor) -> Tensor:
        """Return the learning rates for a tensor of steps, as float64 on the same device."""

    def preview(self, total_steps: int, *, width: int = 60) -> str:
        """Draw the schedule as text, with its first, highest and last value.

        >>> from flodl.optim import CyclicLR
        >>> print(CyclicLR(0.001, 0.01, 10).preview(40))
        ▂▂▃▄▄▅▅▆▇▇█▇▇▆▅▅▄▄▃▂▂▂▃▄▄▅▅▆▇▇█▇▇▆▅▅▄▄▃▂
        step 0: 0.001 · highest 0.01 at step 10 · step 39: 0.0019
        """
        return preview(type(self).__name__, self.lr, total_steps, width=width)
