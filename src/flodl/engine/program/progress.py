"""How far a training step has come, so that an error or an interrupt can be cleaned up after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto

from torch import Tensor


class Stage(Enum):
    """The stages of one call of a `TrainStep`, in order; a micro-batch without an update ends at COUNTED."""

    FORWARD = auto()  # nothing has changed yet
    BACKWARD = auto()  # gradients are being written
    ACCUMULATED = auto()  # the gradients of the micro-batch are complete
    COUNTED = auto()  # and counted, where the accumulation window is not full yet
    REDUCING = auto()  # gradients are being averaged over ranks
    UPDATING = auto()  # parameters are being written
    UPDATED = auto()  # the update is complete
    UPDATE_COUNTED = auto()  # and counted
    SCHEDULED = auto()  # and the schedule has moved on


class Progress:
    """The stage of the current call; shared by a step and its compiled variant.

    >>> progress = Progress()
    >>> progress.stage = Stage.UPDATED
    >>> with progress.preserved():
    ...     progress.stage = Stage.FORWARD
    >>> progress.stage
    <Stage.UPDATED: 7>
    """

    def __init__(self) -> None:
        self.stage = Stage.FORWARD

    @property
    def is_writing(self) -> bool:
        """Whether gradients or parameters are half written."""
        return self.stage in (Stage.BACKWARD, Stage.REDUCING, Stage.UPDATING)

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Run the step again, for a comparison, without losing track of the real one."""
        stage = self.stage
        try:
            yield
        finally:
            self.stage = stage


@dataclass(slots=True)
class Count:
    """How much a step has done, and the named values of its last call.

    Every call changes them. They are not attributes of the step, whose assignments are checked.
    """

    steps: int = 0
    updates: int = 0
    values: Mapping[str, Tensor] = field(default_factory=dict)
    # The number of steps before the first one of this object: those that were loaded or copied.
    steps_before: int = 0
    # How many of the updates were loaded instead of done here.
    loaded_updates: int = 0
    # Whether updates were loaded, and nothing has run since.
    is_loaded: bool = False
    # Whether this is a step of a trial, whose schedule is not that of the run.
    is_trial: bool = False

    @property
    def own_steps(self) -> int:
        """How many steps this object has done in this process.

        >>> Count(steps=12, steps_before=10).own_steps
        2
        """
        return self.steps - self.steps_before

    def load(self, steps: int, updates: int) -> None:
        """Continue from these numbers; the steps that were done here stay done.

        >>> count = Count(steps=2)
        >>> count.load(10, 5)
        >>> count.steps, count.own_steps
        (10, 2)
        """
        self.steps_before += steps - self.steps
        self.steps, self.updates, self.loaded_updates = steps, updates, updates
