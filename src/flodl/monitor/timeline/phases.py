"""Measure the time of each phase; at any time, the host is in exactly one phase."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .record import OTHER


class Phases:
    """Count seconds by phase; a nested phase pauses the outer one.

    `enter` and `leave` are called by the training thread. `totals` may be called from any thread; it includes
    the open phase, so that a long wait is visible while it lasts.

    >>> times = iter([0.0, 1.0, 3.0, 6.0, 10.0])
    >>> phases = Phases(lambda: next(times))
    >>> phases.enter("step")
    >>> phases.enter("sync")
    >>> phases.leave("sync")
    3.0
    >>> phases.totals()
    {'other': 1.0, 'step': 6.0, 'sync': 3.0}
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: list[tuple[str, float]] = []
        self._since_s = clock()
        self._totals = {OTHER: 0.0}

    def enter(self, name: str) -> None:
        """Start a phase."""
        with self._lock:
            self._open.append((name, self._update()))

    def leave(self, name: str) -> float:
        """End a phase and return its duration, including nested phases.

        It need not be the innermost one: a loop over batches that is left early ends its step late.
        """
        with self._lock:
            now_s = self._update()
            for index in reversed(range(len(self._open))):
                if self._open[index][0] == name:
                    return now_s - self._open.pop(index)[1]
            return 0.0

    def totals(self) -> dict[str, float]:
        """Return the seconds of each phase so far; they add up to the time since the start."""
        with self._lock:
            self._update()
            return dict(self._totals)

    def _update(self) -> float:
        now_s = self._clock()
        name = self._open[-1][0] if self._open else OTHER
        self._totals[name] = self._totals.get(name, 0.0) + now_s - self._since_s
        self._since_s = now_s
        return now_s
