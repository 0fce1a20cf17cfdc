"""Measured times per batch: a short mean per rank, on one cost scale for all ranks."""

from __future__ import annotations

from operator import mul
from typing import Any

COMPUTE, DELIVERED = "compute", "delivered"
# Two reports in a row that are off by more than this factor, in the same direction, replace the earlier ones:
# the speed has changed, for example because a device is throttled.
JUMP = 1.3


class Speeds:
    """The mean milliseconds per batch of each rank, over the batches of its last reports.

    While windows grow, the last one has the most batches, and its speed counts for most: a rank is slower
    once others that share its device work, too.

    Every report has the time of the computation, and may have the delivered time, which includes waiting for
    data. The delivered scale is used only if every rank has it: ranks on different scales cannot be compared.

    >>> speeds = Speeds(num_reports=5)
    >>> speeds.report(0, steps=10, compute_ms=100.0, delivered_ms=150.0)
    True
    >>> speeds.report(1, steps=5, compute_ms=100.0)
    True
    >>> speeds.scale, speeds.means
    ('compute', {0: 10.0, 1: 20.0})
    """

    def __init__(self, num_reports: int) -> None:
        self._most = num_reports
        # The last times per batch of each rank, on both scales, and the numbers of batches.
        self._reports: dict[int, tuple[list[float], list[float], list[int]]] = {}
        self._missed: dict[int, int] = {}
        # Whether the last report of a rank was much slower (True) or faster (False) than the mean.
        self._jumped: dict[int, bool] = {}
        self._compute: dict[int, float] = {}
        self._delivered: dict[int, float] = {}

    @property
    def scale(self) -> str:
        return DELIVERED if self._compute and len(self._delivered) == len(self._compute) else COMPUTE

    @property
    def means(self) -> dict[int, float]:
        """The milliseconds per batch of every measured rank; do not modify it."""
        return self._delivered if len(self._delivered) == len(self._compute) else self._compute

    def report(self, rank: int, *, steps: int, compute_ms: float, delivered_ms: float = 0.0) -> bool:
        """Add what a rank measured over the batches it actually trained; return whether it was usable."""
        if steps <= 0 or not 0.0 < compute_ms < float("inf"):
            return False
        found = self._reports.get(rank)
        if found is None:
            found = self._reports[rank] = ([], [], [])
        compute, delivered, counts = found
        compute.append(compute_ms / steps)
        delivered.append(delivered_ms / steps if 0.0 < delivered_ms < float("inf") else 0.0)
        counts.append(steps)
        mean = self._compute.get(rank)
        if mean is not None and not mean / JUMP <= compute[-1] <= mean * JUMP:
            self._jump(rank, slower=compute[-1] > mean)
        elif self._jumped:
            self._jumped.pop(rank, None)
        if len(compute) > self._most:
            del compute[0], delivered[0], counts[0]
        self._compute[rank] = _mean(compute, counts)
        if 0.0 not in delivered:
            self._delivered[rank] = _mean(delivered, counts)
        elif self._delivered:
            self._delivered.pop(rank, None)
        if self._missed:
            self._missed.pop(rank, None)
        return True

    def _jump(self, rank: int, *, slower: bool) -> None:
        if self._jumped.get(rank) is slower:
            for values in self._reports[rank]:
                del values[:-2]
        self._jumped[rank] = slower

    def miss(self, rank: int) -> bool:
        """Count a window without a report of this rank; return whether its speed is now forgotten."""
        missed = self._missed.get(rank, 0) + 1
        self._missed[rank] = missed
        if missed < self._most or rank not in self._compute:
            return False
        self.forget(rank)
        return True

    def forget(self, rank: int) -> None:
        for table in (self._reports, self._missed, self._jumped, self._compute, self._delivered):
            table.pop(rank, None)

    def state(self) -> dict[str, Any]:
        return {
            "reports": [[rank, list(zip(*found))] for rank, found in self._reports.items()],
            "missed": [list(pair) for pair in self._missed.items()],
            "jumped": [list(pair) for pair in self._jumped.items()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        for rank in list(self._compute):
            self.forget(rank)
        for rank, reports in state["reports"]:
            # Saves of earlier versions have no numbers of batches.
            compute, delivered = ([each[scale] for each in reports] for scale in (0, 1))
            counts = [each[2] if len(each) > 2 else 1 for each in reports]
            self._reports[rank] = (compute, delivered, counts)
            self._compute[rank] = _mean(compute, counts)
            if 0.0 not in delivered:
                self._delivered[rank] = _mean(delivered, counts)
        self._missed, self._jumped = dict(state["missed"]), dict(state["jumped"])


def _mean(times: list[float], counts: list[int]) -> float:
    """Return the mean time per batch, of reports with this many batches each."""
    total: float = sum(map(mul, times, counts))
    return total / sum(counts)
