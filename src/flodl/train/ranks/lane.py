"""What one rank does: the records of a supervisor as intervals of computing, reducing, waiting and pauses."""

from __future__ import annotations

from typing import Any

from flodl.monitor.ranks import Slice

from .report import RankReport

# Intervals that are shorter are not worth a slice.
_SHORTEST_S = 1e-6


class Lane:
    """The current activity of a rank, and the intervals before it. Times are seconds since the epoch.

    What ranks report is placed on the clock of the supervisor: an activity ends when its report arrives.
    """

    def __init__(self, report: RankReport, now_s: float) -> None:
        self.report = report
        # Before it joins, its process starts.
        self.joined_s, self.ended_s = 0.0, 0.0
        self.since_s = self.seen_s = now_s
        self._doing, self._is_late = "pause", False
        # Its plans that are not finished, as samples and batches of each.
        self._plans: list[tuple[int, int]] = []
        self._has_worked = False
        # Since the last event.
        self._slices: list[Slice] = []
        self._pace: list[tuple[float, int]] = []
        self._trained = [0.0, 0.0]
        self._speed = 0.0

    def join(self, now_s: float) -> None:
        self.joined_s = self.since_s = now_s
        self.report.state = "joined"

    def plan(self, now_s: float, samples: int, batches: int) -> None:
        if not self._plans:
            self._until(now_s)
            self._doing = "compute"
        self._has_worked = True
        self._plans.append((samples, batches))
        if batches != self.report.batches:
            self._pace.append((now_s, batches))
        self.report.batches = batches
        self._show()

    def arrive(
        self,
        now_s: float,
        took_s: float,
        steps: int,
        *,
        wait_ms: float = 0.0,
        reduce_ms: float = 0.0,
        num_bytes: int = 0,
    ) -> None:
        """It has trained its plan; the last three are the costs of exchanging gradients meanwhile."""
        samples, batches = self._plans.pop(0) if self._plans else (0, 0)
        # The plan was on its way before, or the rank prepared its work.
        self._until(max(now_s - took_s, self.since_s), doing="pause")
        self._until(now_s, doing="compute", waited_s=wait_ms / 1000.0, reduced_s=reduce_ms / 1000.0)
        self.report.num_bytes += num_bytes
        self._trained[0] += samples * min(steps / batches, 1.0) if batches else 0.0
        self._trained[1] += took_s
        self._is_late = False
        self._doing = "compute" if self._plans else "wait"
        self._show()

    def reduce(self, now_s: float, reduce_s: float, num_bytes: int) -> None:
        self.report.num_bytes += num_bytes
        # A rank that trains on loses no time.
        if self._doing != "compute":
            self._until(max(now_s - reduce_s, self.since_s))
            self._until(now_s, doing="reduce")

    def pause(self, now_s: float) -> None:
        """The calling process evaluates or saves."""
        if self._doing == "wait":
            self._until(now_s)
            self._doing = "pause"
            self._show()

    def late(self) -> None:
        self._is_late = True
        self._show()

    def refuse(self) -> None:
        """What it trained does not count."""
        self._plans.clear()

    def end(self, now_s: float, lost: str = "") -> None:
        if self.ended_s:
            self.report.lost = self.report.lost or lost
            return
        if self.joined_s:
            self._until(now_s)
        self.ended_s = now_s
        self.report.lost = lost
        self.report.state = "lost" if lost else "finished"

    def _show(self) -> None:
        if not self.ended_s and self._has_worked:
            working = "late" if self._is_late else "running"
            self.report.state = {"compute": working, "wait": "waiting", "pause": "paused"}[self._doing]

    def _until(self, now_s: float, *, doing: str = "", waited_s: float = 0.0, reduced_s: float = 0.0) -> None:
        """The rank did this until now, by default its current activity, and waited or reduced in between."""
        spent_s, doing = now_s - self.since_s, doing or self._doing
        if self.ended_s or spent_s < _SHORTEST_S:
            return
        names = ("compute", "reduce", "wait")
        compute_s, reduce_s, wait_s = (spent_s if doing == name else 0.0 for name in names)
        if doing == "compute":
            wait_s = min(waited_s, spent_s)
            reduce_s = min(reduced_s, spent_s - wait_s)
            compute_s = spent_s - wait_s - reduce_s
        self._slices.append((self.since_s, now_s, compute_s, reduce_s, wait_s))
        self.since_s = now_s
        if self._has_worked:
            report = self.report
            report.train_s += compute_s
            report.reduce_s += reduce_s
            report.wait_s += wait_s
            report.pause_s += spent_s - compute_s - reduce_s - wait_s

    def take(self) -> tuple[list[Slice], list[tuple[float, int]]]:
        """Return the intervals and the paces since the last call."""
        found = self._slices, self._pace
        self._slices, self._pace = [], []
        samples, seconds = self._trained
        self._speed = samples / seconds if seconds else 0.0
        self._trained = [0.0, 0.0]
        return found

    def row(self) -> dict[str, Any]:
        """Return the rank as plain data; `speed` is that since the event before, 0 if it is not known."""
        report = self.report
        names = ("rank", "device", "host", "state", "updates", "samples", "batches", "num_bytes", "lost")
        seconds = ("train_s", "wait_s", "reduce_s", "pause_s")
        times = {name: round(getattr(self, name), 4) for name in ("since_s", "seen_s", "joined_s", "ended_s")}
        return {
            **{name: getattr(report, name) for name in names},
            **{name: round(getattr(report, name), 4) for name in seconds},
            **times,
            "speed": float(f"{self._speed:.5g}"),
        }
