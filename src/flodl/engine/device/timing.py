"""How long a window takes on each tier, from the inside of the calls."""

from __future__ import annotations

import statistics
import time
from collections import deque

import torch

# Windows before the time of a tier is known.
ENOUGH = {"eager": 3, "captured": 5, "compiled": 5}
RECENT = 15


def now_s(device: torch.device) -> float:
    """Give the time once the device has done everything that it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class WindowTimes:
    """Medians over the latest windows of each tier; what the caller does between the calls does not count.

    On CUDA the ends of a call are waited for, so only as many windows are measured as are needed. Elsewhere
    all are, and two tiers are compared by windows that lie close together.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._taken: dict[str, deque[float]] = {}
        self._since: float | None = None
        self._spent = 0.0
        self._is_whole = False

    def is_known(self, tier: str) -> bool:
        """Say whether enough windows of a tier were measured."""
        return len(self._taken.get(tier, ())) >= ENOUGH[tier]

    def of(self, tier: str) -> float | None:
        """Give the seconds of a window, once they are known."""
        return statistics.median(self._taken[tier]) if self.is_known(tier) else None

    def begin_call(self, tier: str, *, opens: bool) -> None:
        """Note that a call begins, and perhaps a window with it."""
        on_cuda = self._device.type == "cuda"
        if opens:
            self._spent, self._is_whole = 0.0, not on_cuda or not self.is_known(tier)
        if not self._is_whole:
            self._since = None
        else:
            self._since = now_s(self._device) if on_cuda else time.perf_counter()

    def end_call(self) -> None:
        """Note that a call has ended."""
        if self._since is not None:
            now = now_s(self._device) if self._device.type == "cuda" else time.perf_counter()
            self._spent += now - self._since

    def discard_window(self) -> None:
        """Leave this window out: it did not run on one tier alone."""
        self._is_whole, self._since = False, None

    def end_window(self, tier: str) -> bool:
        """Take in the window that has ended; gives whether the time of its tier is known by it now."""
        if not self._is_whole:
            return False
        taken = self._taken.get(tier)
        if taken is None:
            taken = self._taken[tier] = deque(maxlen=RECENT)
        taken.append(self._spent)
        self._is_whole = False
        return len(taken) == ENOUGH[tier]

    def forget(self, tier: str) -> None:
        """Measure a tier anew."""
        self._taken.pop(tier, None)
