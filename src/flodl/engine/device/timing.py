"""Measures how long a window takes on each tier."""

from __future__ import annotations

import statistics
from collections import deque
from time import perf_counter

import torch

# Windows that must be measured before the time of a tier is known.
ENOUGH = {"eager": 3, "captured": 5, "compiled": 5}
RECENT = 15


def now_s(device: torch.device) -> float:
    """Synchronize the device, and return the time in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


class WindowTimes:
    """Medians over the latest windows of each tier; time between the calls does not count.

    On CUDA a measured call synchronizes, so only as many windows are measured as needed. On other devices all
    are, and two tiers are compared by windows that are close in time.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds: dict[str, deque[float]] = {}
        self._call_started_s: float | None = None
        self._window_s = 0.0
        self._is_measured = False

    def is_known(self, tier: str) -> bool:
        """Return whether enough windows of a tier were measured."""
        return len(self._seconds.get(tier, ())) >= ENOUGH[tier]

    def of(self, tier: str) -> float | None:
        """Return the median seconds of a window, or None if not known yet."""
        return statistics.median(self._seconds[tier]) if self.is_known(tier) else None

    def begin_call(self, tier: str, *, opens: bool) -> None:
        """Start measuring a call, and a window if the call opens one."""
        on_cuda = self._device.type == "cuda"
        if opens:
            self._window_s, self._is_measured = 0.0, not on_cuda or not self.is_known(tier)
        if not self._is_measured:
            self._call_started_s = None
        else:
            self._call_started_s = now_s(self._device) if on_cuda else perf_counter()

    def end_call(self) -> None:
        """Add the time of a call to its window."""
        if self._call_started_s is not None:
            now = now_s(self._device) if self._device.type == "cuda" else perf_counter()
            self._window_s += now - self._call_started_s

    def discard_window(self) -> None:
        """Do not measure this window, because it did not run on a single tier."""
        self._is_measured, self._call_started_s = False, None

    def end_window(self, tier: str) -> bool:
        """Record a window that has ended; return whether it made the time of its tier known."""
        if not self._is_measured:
            return False
        seconds = self._seconds.get(tier)
        if seconds is None:
            seconds = self._seconds[tier] = deque(maxlen=RECENT)
        seconds.append(self._window_s)
        self._is_measured = False
        return len(seconds) == ENOUGH[tier]

    def forget(self, tier: str) -> None:
        """Measure a tier again from scratch."""
        self._seconds.pop(tier, None)
