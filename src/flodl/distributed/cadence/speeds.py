"""Measured times per batch: a short mean per rank, on one cost scale for all ranks."""

from __future__ import annotations

from typing import Any

COMPUTE, DELIVERED = "compute", "delivered"
# Two reports in a row that are off by more than this factor, in the same direction, replace the earlier ones:
# the speed has changed, for example because a device is throttled.
JUMP = 1.3


class Speeds:
    """The mean milliseconds per batch of each rank, over its last reports.

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
        # The last times per batch of each rank, on both scales.
        self._reports: dict[int, tuple[list[float], list[float]]] = {}
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
            found = self._reports[rank] = ([], [])
        compute, delivered = found
        compute.append(compute_ms / steps)
        delivered.append(delivered_ms / steps if 0.0 < delivered_ms < float("inf") else 0.0)
        mean = self._compute.get(rank)
        if mean is not None and not mean / JUMP <= compute[-1] <= mean * JUMP:
            self._jump(rank, compute, delivered, slower=compute[-1] > mean)
        elif self._jumped:
            self._jumped.pop(rank, None)
        num = len(compute)
        if num > self._most:
            del compute[0], delivered[0]
            num -= 1
        self._compute[rank] = sum(compute) / num
        if 0.0 not in delivered:
            self._delivered[rank] = sum(delivered) / num
        elif self._delivered:
            self._delivered.pop(rank, None)
        if self._missed:
            self._missed.pop(rank, None)
        return True

    def _jump(self, rank: int, compute: list[float], delivered: list[float], *, slower: bool) -> None:
        if self._jumped.get(rank) is slower:
            del compute[:-2], delivered[:-2]
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
            compute, delivered = ([each[scale] for each in reports] for scale in (0, 1))
            self._reports[rank] = (compute, delivered)
            self._compute[rank] = sum(compute) / len(compute)
            if 0.0 not in delivered:
                self._delivered[rank] = sum(delivered) / len(delivered)
        self._missed, self._jumped = dict(state["missed"]), dict(state["jumped"])
