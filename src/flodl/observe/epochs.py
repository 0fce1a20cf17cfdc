"""The rows of a history: which epoch is open, how long the others took, how long the rest will take."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex

from flodl.core.errors import MetricError
from flodl.core.eta import seconds_left


class Rows:
    """Number the epochs and time them.

    A row ends in one of two ways: `end` closes it now, and `begin_next` closes it at the last `mark`,
    for those who mark the end of each epoch and never say `end`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._epoch = 0
        self._start_s = clock()
        self._carried_s = 0.0
        self._started = False
        self._mark_s: float | None = None
        self._ends_are_told = False
        self._durations: dict[int, float] = {}
        self._first_open = 0

    @property
    def first_open(self) -> int:
        """The first row since the last `end`; flushes may have begun others after it."""
        return min(self._first_open, self._epoch)

    @property
    def epoch(self) -> int:
        """The open row, counted from 0."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        if not isinstance(epoch, SupportsIndex) or operator.index(epoch) < 0:
            raise MetricError(f"the epoch is set to {epoch!r}. Epochs are whole numbers from 0 up.")
        if epoch != self._epoch:
            self._close(at_s=self._mark_s)
            self._start_s = self._clock()
            self._epoch = self._first_open = operator.index(epoch)

    @property
    def durations(self) -> dict[int, float]:
        """Seconds that each finished row took."""
        durations = dict(self._durations)
        if self._mark_s is not None and not self._ends_are_told:
            durations[self._epoch] = self._mark_s - self._start_s
        return durations

    def start(self) -> None:
        """Time the open row from now on, not from the set-up; only the first call counts."""
        if not self._started:
            self._started = True
            self._start_s = self._clock() - self._carried_s

    def mark(self) -> None:
        """Note that the open row got values just now."""
        self._mark_s = self._clock()

    def begin_next(self) -> None:
        """Close the row at its last mark and open the next one."""
        self._close(at_s=self._mark_s)
        self._epoch += 1

    def end(self) -> None:
        """Close the row now and open the next one."""
        self._ends_are_told = True
        self._close(at_s=self._clock())
        self._epoch += 1
        self._first_open = self._epoch

    def go_back(self, first: int) -> None:
        """Make one row of all rows from `first` on: several flushes fell into one epoch."""
        joined = [epoch for epoch in self._durations if first <= epoch < self._epoch]
        self._start_s -= sum(self._durations.pop(epoch) for epoch in joined)
        self._epoch = min(first, self._epoch)

    def eta(self, total_epochs: int) -> float:
        """Estimate the seconds from here to the end of `total_epochs` epochs; 0.0 while nothing is known."""
        durations = self.durations
        done = self._epoch + (self._epoch in durations)
        return seconds_left(durations, done=done, total_epochs=total_epochs) or 0.0

    def _close(self, *, at_s: float | None) -> None:
        if at_s is not None:
            self._durations[self._epoch] = at_s - self._start_s
            self._start_s = at_s
        self._mark_s = None
        self._carried_s = 0.0
        self._started = True

    def state_dict(self) -> dict[str, Any]:
        """Give everything as plain data."""
        return {
            "epoch": self._epoch,
            "durations": [[epoch, seconds] for epoch, seconds in self._durations.items()],
            "elapsed_s": self._clock() - self._start_s,
            "marked_s": None if self._mark_s is None else self._mark_s - self._start_s,
            "ends_are_told": self._ends_are_told,
            "first_open": self._first_open,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken; the time between the two does not count."""
        marked_s = state["marked_s"]
        self._epoch = int(state["epoch"])
        self._first_open = int(state.get("first_open", self._epoch))
        self._durations = {int(epoch): float(seconds) for epoch, seconds in state["durations"]}
        self._carried_s = float(state["elapsed_s"])
        self._ends_are_told = bool(state["ends_are_told"])
        self._start_s = self._clock() - self._carried_s
        self._mark_s = None if marked_s is None else self._start_s + float(marked_s)
        self._started = False
