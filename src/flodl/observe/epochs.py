"""Numbering and timing the epochs, and estimating the remaining time."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex

from flodl.core.errors import MetricError
from flodl.core.eta import seconds_left


def check_total_epochs(total_epochs: object, question: str) -> int:
    """Return a number of epochs if it is an integer of at least 0; otherwise raise."""
    count = None
    if isinstance(total_epochs, SupportsIndex) and not isinstance(total_epochs, bool):
        with contextlib.suppress(TypeError):  # a tensor with several elements
            count = operator.index(total_epochs)
    if count is None or count < 0:
        raise MetricError(
            f"{question} got total_epochs={total_epochs!r:.60}. Pass the number of epochs of the whole run, "
            "an integer of at least 0."
        )
    return count


class EpochTimer:
    """Number the epochs and time them.

    An epoch ends in one of two ways: `end` closes it now, and `start_next` closes it at the last `mark`, for
    training loops that flush once per epoch and never call `end`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._epoch = 0
        self._start_s = clock()
        self._carried_s = 0.0
        self._started = False
        self._mark_s: float | None = None
        self._uses_end = False
        self._durations: dict[int, float] = {}
        self._first_unended = 0

    @property
    def first_unended(self) -> int:
        """The first epoch since the last `end`; flushes may have started others after it."""
        return min(self._first_unended, self._epoch)

    @property
    def epoch(self) -> int:
        """The current epoch, counted from 0."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        if not isinstance(epoch, SupportsIndex) or operator.index(epoch) < 0:
            raise MetricError(f"the epoch is set to {epoch!r}; expected an integer of at least 0.")
        if epoch != self._epoch:
            self._close(at_s=self._mark_s)
            self._start_s = self._clock()
            self._epoch = self._first_unended = operator.index(epoch)

    @property
    def durations(self) -> dict[int, float]:
        """The duration of each finished epoch in seconds."""
        durations = dict(self._durations)
        if self._mark_s is not None and not self._uses_end:
            durations[self._epoch] = self._mark_s - self._start_s
        return durations

    @property
    def start_s(self) -> float:
        """The time at which the current epoch started."""
        return self._start_s

    @property
    def is_untouched(self) -> bool:
        """Whether no values were flushed into the current epoch."""
        return self._mark_s is None

    def start(self) -> None:
        """Start timing the current epoch now instead of at construction; only the first call counts."""
        if not self._started:
            self._started = True
            self._start_s = self._clock() - self._carried_s

    def mark(self) -> None:
        """Note the time at which the current epoch received values."""
        self._mark_s = self._clock()

    def start_next(self) -> None:
        """Close the epoch at its last mark and start the next one."""
        self._close(at_s=self._mark_s)
        self._epoch += 1

    def end(self) -> None:
        """Close the epoch now and start the next one."""
        self._uses_end = True
        self._close(at_s=self._clock())
        self._epoch += 1
        self._first_unended = self._epoch

    def merge(self, first: int) -> None:
        """Merge all epochs from `first` on into one, after several flushes within one epoch."""
        merged = [epoch for epoch in self._durations if first <= epoch < self._epoch]
        self._start_s -= sum(self._durations.pop(epoch) for epoch in merged)
        self._epoch = min(first, self._epoch)

    def eta(self, total_epochs: int, *, first: int = 0) -> float:
        """Estimate the seconds until `total_epochs` epochs from `first` on are finished; NaN if unknown."""
        durations = {epoch: seconds for epoch, seconds in self.durations.items() if epoch >= first}
        done = self._epoch + (self._epoch in durations) - first
        total = check_total_epochs(total_epochs, "eta")
        if done >= total:
            return 0.0
        left = seconds_left(durations, done=done, total_epochs=total)
        return math.nan if left is None else left

    def _close(self, *, at_s: float | None) -> None:
        if at_s is not None:
            self._durations[self._epoch] = at_s - self._start_s
            self._start_s = at_s
        self._mark_s = None
        self._carried_s = 0.0
        self._started = True

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return {
            "epoch": self._epoch,
            "durations": [[epoch, seconds] for epoch, seconds in self._durations.items()],
            "elapsed_s": self._clock() - self._start_s,
            "marked_s": None if self._mark_s is None else self._mark_s - self._start_s,
            "ends_are_told": self._uses_end,
            "first_open": self._first_unended,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; the time since it was taken does not count."""
        marked_s = state["marked_s"]
        self._epoch = int(state["epoch"])
        self._first_unended = int(state.get("first_open", self._epoch))
        self._durations = {int(epoch): float(seconds) for epoch, seconds in state["durations"]}
        self._carried_s = float(state["elapsed_s"])
        self._uses_end = bool(state["ends_are_told"])
        self._start_s = self._clock() - self._carried_s
        self._mark_s = None if marked_s is None else self._start_s + float(marked_s)
        self._started = False
