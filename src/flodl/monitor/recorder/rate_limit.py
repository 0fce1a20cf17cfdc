"""A rate limit for calls that may come at every training step."""

from __future__ import annotations

import math
import time


class RateLimit:
    """Allow an action at most once every `interval_s` seconds; an interval of 0 always allows it.

    >>> limit = RateLimit(3600.0)
    >>> limit.is_due(), limit.is_due(), limit.is_due(force=True)
    (True, False, True)
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._last_s = -math.inf

    def is_due(self, *, force: bool = False) -> bool:
        """Return whether the action is due, and start the next interval if it is; `force` makes it due."""
        now_s = time.monotonic()
        if now_s - self._last_s < self._interval_s and not force:
            return False
        self._last_s = now_s
        return True
