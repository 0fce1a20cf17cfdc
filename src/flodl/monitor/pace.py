"""What may be told at every step, and is taken only so often."""

from __future__ import annotations

import math
import time


class Pace:
    """Say yes at most once in `interval_s` seconds; an interval of 0 always says yes.

    >>> pace = Pace(3600.0)
    >>> pace.is_due(), pace.is_due(), pace.is_due(at_once=True)
    (True, False, True)
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._last_s = -math.inf

    def is_due(self, *, at_once: bool = False) -> bool:
        """Say whether it is time again, or is wanted at once; a yes begins the next interval."""
        now_s = time.monotonic()
        if now_s - self._last_s < self._interval_s and not at_once:
            return False
        self._last_s = now_s
        return True
