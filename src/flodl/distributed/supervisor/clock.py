"""The clock of a run, which can stand still."""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """Milliseconds since the start. While it is paused, no deadline of a coordinator comes nearer.

    >>> seconds = iter([0.0, 1.0, 5.0, 9.0])
    >>> clock = Clock(lambda: next(seconds))
    >>> clock.pause("saving")
    >>> clock.now_ms()
    1000.0
    >>> clock.resume("saving")
    >>> clock.now_ms()
    5000.0
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._start_s = seconds()
        self._paused_s = 0.0
        self._since_s: float | None = None
        self._reasons: set[str] = set()

    def pause(self, reason: str) -> None:
        if not self._reasons:
            self._since_s = self._seconds()
        self._reasons.add(reason)

    def resume(self, reason: str) -> None:
        """Continue once no reason to pause is left."""
        self._reasons.discard(reason)
        if not self._reasons and self._since_s is not None:
            self._paused_s += self._seconds() - self._since_s
            self._since_s = None

    @property
    def is_paused(self) -> bool:
        return self._since_s is not None

    def now_ms(self) -> float:
        now_s = self._since_s if self._since_s is not None else self._seconds()
        return 1000.0 * (now_s - self._start_s - self._paused_s)
