"""A stopwatch with one hand: at any moment the host is in exactly one phase."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .record import OTHER


class Phases:
    """Count seconds by phase; a phase inside another one stops the outer one's clock.

    `enter` and `leave` belong to the training thread; `totals` may be asked from anywhere, and counts the
    open phase up to now, so that a long wait is seen while it lasts.

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
        """Begin a phase."""
        with self._lock:
            self._open.append((name, self._settle()))

    def leave(self, name: str) -> float:
        """End the phase, and give how long it took, with all that was inside.

        It need not be the one that began last: a loop over batches that was left early ends its step late.
        """
        with self._lock:
            now_s = self._settle()
            for place in reversed(range(len(self._open))):
                if self._open[place][0] == name:
                    return now_s - self._open.pop(place)[1]
            return 0.0

    def totals(self) -> dict[str, float]:
        """Give the seconds of each phase so far; they add up to the time since the start."""
        with self._lock:
            self._settle()
            return dict(self._totals)

    def _settle(self) -> float:
        now_s = self._clock()
        name = self._open[-1][0] if self._open else OTHER
        self._totals[name] = self._totals.get(name, 0.0) + now_s - self._since_s
        self._since_s = now_s
        return now_s
