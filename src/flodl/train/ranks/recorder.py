"""Adds up what a supervisor records, and passes it to the monitor now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from flodl.monitor.ranks import SyncMark, thin, thin_syncs

from .coverage import CoverageCount, Ranges
from .lane import Lane
from .report import RankReport, RanksReport

# The time between two events grows with the run, so that their number is bounded.
_FIRST_INTERVAL_S, _LAST_INTERVAL_S, _INTERVALS = 0.5, 10.0, 1000
# Rare, and too important to wait.
_AT_ONCE = ("lost", "evict")
# Of each rank: its number, the epoch, its batches, and the ranges of its samples.
Work = Sequence[tuple[int, int, int, Ranges]]
_MAX_SLICES, _MAX_SYNCS, _MAX_PACES = 1024, 64, 16


class Recorder:
    """Takes the records of a supervisor. `emit` receives an event with everything new, not too often.

    Records come from the thread of the supervisor; `flush_if_due` may be called from another one.
    """

    def __init__(
        self,
        policy: str,
        *,
        num_samples: int = 0,
        batch_size: int = 1,
        emit: Callable[[dict[str, Any]], object] | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._report = RanksReport(policy)
        self._lanes: dict[int, Lane] = {}
        self._coverage = CoverageCount(num_samples)
        self._batch_size = batch_size
        self._emit, self._now_s = emit, now_s
        self._lock = threading.Lock()
        # What the clock of the records has to be moved by.
        self._offset_s: float | None = None
        self._started_s = self._emitted_s = 0.0
        self._number = 0
        self._syncs: list[SyncMark] = []
        self._is_new = False
        # Committed samples of the current epoch, for the progress that is shown.
        self.samples_in_epoch = 0

    def resume(self, epoch: int, committed: Ranges) -> None:
        """These samples were trained before this run."""
        self._coverage.resume(epoch, committed)

    def on_event(self, record: dict[str, Any]) -> None:
        """Take a record of the run log."""
        with self._lock:
            if self._offset_s is None:
                self._offset_s = self._now_s() - record["t_ms"] / 1000.0
                self._started_s = self._now_s()
            now_s = self._offset_s + record["t_ms"] / 1000.0
            handler = getattr(self, f"_on_{record['kind']}", None)
            if record["kind"] == "started":
                self._start(now_s, record)
            elif handler is not None:
                handler(now_s, record)
            elif (lane := self._lanes.get(record.get("rank", -1))) is not None:
                self._of_rank(lane, now_s, record)
            self._is_new = True
        if record["kind"] in _AT_ONCE:
            self.flush()
        else:
            self.flush_if_due()

    def _start(self, now_s: float, record: dict[str, Any]) -> None:
        report = RankReport(record["rank"], record["device"], str(record.get("host") or ""))
        self._lanes[record["rank"]] = Lane(report, now_s)
        self._report.ranks = [self._lanes[rank].report for rank in sorted(self._lanes)]

    def _of_rank(self, lane: Lane, now_s: float, record: dict[str, Any]) -> None:
        kind = record["kind"]
        if kind not in ("plan", "evict"):
            lane.seen_s = now_s
        if kind == "joined":
            lane.join(now_s)
        elif kind == "plan":
            samples = sum(stop - start for start, stop in record["ranges"])
            lane.plan(now_s, samples, record["batches"])
        elif kind == "arrived":
            lane.arrive(
                now_s, (record["took_ms"] or 0.0) / 1000.0, record["steps"], **record.get("averaging", {})
            )
        elif kind == "reduced":
            lane.reduce(now_s, record.get("reduce_ms", 0.0) / 1000.0, record.get("num_bytes", 0))
            if record.get("divergence") is not None:
                self._report.divergence = record["divergence"]
        elif kind == "refuse":
            lane.refuse()
        elif kind in ("lost", "evict", "ended"):
            lane.end(now_s, "" if kind == "ended" else record["reason"])

    def _on_commit(self, now_s: float, record: dict[str, Any]) -> None:
        for rank in record.get("late", ()):
            if rank in self._lanes:
                self._lanes[rank].late()
        if not record["batches"]:
            return
        self._report.syncs += 1
        self._syncs.append((round(now_s, 4), 1))
        work = record["work"]
        for _, epoch, _, ranges in work:
            self._report.samples += sum(stop - start for start, stop in ranges)
            self._coverage.add(epoch, ranges)
        own = _parts_of_batches(work, self._batch_size) if self._report.policy == "sync" else _own_work(work)
        for rank, (updates, samples) in own.items():
            if rank in self._lanes:
                report = self._lanes[rank].report
                report.updates += updates
                report.samples += samples

    def _on_link(self, now_s: float, record: dict[str, Any]) -> None:
        self._report.link = f"{record['backend']}: {record['reason']}"

    def _on_save(self, now_s: float, record: dict[str, Any]) -> None:
        for lane in self._lanes.values():
            lane.pause(now_s)

    def flush_if_due(self) -> None:
        """Pass on what is new, unless that happened a moment ago."""
        passed_s = self._now_s() - self._started_s
        interval_s = min(max(_FIRST_INTERVAL_S, passed_s / _INTERVALS), _LAST_INTERVAL_S)
        if self._is_new and self._now_s() - self._emitted_s >= interval_s:
            self.flush()

    def flush(self) -> None:
        """Pass on what is new."""
        with self._lock:
            if not self._lanes or not self._is_new:
                return
            self._is_new, self._emitted_s = False, self._now_s()
            update = self._update()
            self._report.history.add(update)
            # Inside the lock, so that events are in their order.
            if self._emit is not None:
                self._emit(update)

    def _update(self) -> dict[str, Any]:
        report = self._report
        report.coverage = self._coverage.report()
        found = {rank: lane.take() for rank, lane in self._lanes.items()}
        most = max(_MAX_SLICES // len(found), 8)
        update = {
            "start_s": round(self._started_s, 4),
            "time_s": round(self._emitted_s, 4),
            "number": self._number,
            "policy": report.policy,
            "totals": {
                "syncs": report.syncs,
                "samples": report.samples,
                "num_bytes": report.num_bytes,
                **({} if report.divergence is None else {"divergence": report.divergence}),
                "coverage": asdict(report.coverage),
                "link": report.link,
            },
            "ranks": [self._lanes[rank].row() for rank in sorted(self._lanes)],
            "slices": {str(rank): _rounded(thin(slices, most)) for rank, (slices, _) in found.items()},
            "pace": {str(rank): _rounded(pace[-_MAX_PACES:]) for rank, (_, pace) in found.items() if pace},
            "syncs": [list(mark) for mark in thin_syncs(self._syncs, _MAX_SYNCS)],
        }
        self._syncs = []
        self._number += 1
        return update

    def report(self) -> RanksReport:
        """Return the report so far, with everything that is recorded."""
        self.flush()
        return self._report


def _own_work(work: Work) -> dict[int, tuple[int, int]]:
    """Return the updates and samples of each rank, which may have several parts.

    >>> _own_work([(0, 0, 2, [(0, 10)]), (1, 0, 1, [(10, 15)]), (0, 1, 1, [(0, 5)])])
    {0: (3, 15), 1: (1, 5)}
    """
    found: dict[int, tuple[int, int]] = {}
    for rank, _, batches, ranges in work:
        updates, samples = found.get(rank, (0, 0))
        found[rank] = (updates + batches, samples + sum(stop - start for start, stop in ranges))
    return found


def _parts_of_batches(work: Work, batch_size: int) -> dict[int, tuple[int, int]]:
    """Return the updates and samples of ranks that divide every batch, whoever it was assigned to.

    >>> _parts_of_batches([(0, 0, 2, [(0, 10)]), (1, 0, 1, [(10, 13)])], 5)
    {0: (3, 5), 1: (3, 8)}
    """
    updates = sum(batches for _, _, batches, _ in work)
    ranges = [each for *_, own in work for each in own]
    ends = [
        (first, min(first + batch_size, stop))
        for start, stop in ranges
        for first in range(start, stop, batch_size)
    ]
    counts = [last - first for first, last in ends]
    ranks = sorted({rank for rank, *_ in work})
    size = len(ranks)
    return {
        rank: (updates, sum(count * (index + 1) // size - count * index // size for count in counts))
        for index, rank in enumerate(ranks)
    }


def _rounded(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[round(value, 4) for value in row] for row in rows]
