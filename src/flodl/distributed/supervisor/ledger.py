"""What ranks report about their work; it counts once it is committed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from flodl.distributed.coordination import Arrived, Commit, Plan, Reduced
from flodl.distributed.coverage import Lease, Range

Sums = dict[str, tuple[float, float]]


@dataclass(slots=True)
class RankTotals:
    """The work and the time of one rank. `steps` are committed batches; times are in milliseconds."""

    steps: int = 0
    samples: int = 0
    trained_steps: int = 0
    compute_ms: float = 0.0
    # Waiting for others before the next plan, and inside reductions.
    wait_ms: float = 0.0
    reduce_wait_ms: float = 0.0
    reduce_ms: float = 0.0
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CommitReport:
    """A committed window: its command, and the means over the work in it."""

    commit: Commit
    committed: int
    loss: float | None
    metrics: dict[str, float]
    # Rank, epoch, batches and ranges of positions of each lease in it.
    work: list[tuple[int, int, int, tuple[Range, ...]]]
    # The weighted sums behind the metrics: name → (sum, weight).
    sums: Sums


@dataclass(slots=True)
class _Sums:
    loss: tuple[float, float] = (0.0, 0.0)
    metrics: Sums = field(default_factory=dict)

    def add(self, other: _Sums) -> None:
        self.loss = (self.loss[0] + other.loss[0], self.loss[1] + other.loss[1])
        for name, (value, weight) in other.metrics.items():
            known = self.metrics.get(name, (0.0, 0.0))
            self.metrics[name] = (known[0] + value, known[1] + weight)

    def means(self) -> tuple[float | None, dict[str, float]]:
        loss = self.loss[0] / self.loss[1] if self.loss[1] else None
        return loss, {
            name: value / weight if weight else math.nan for name, (value, weight) in self.metrics.items()
        }


class Ledger:
    """Keeps reports until their leases are committed, and adds them up by epoch and by rank."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._leases: dict[int, Lease] = {}
        self._reports: dict[Lease, _Sums] = {}
        # The work in the open reduction, by window: the next one may open before a commit is carried out.
        self._work: dict[int, list[tuple[Lease, int]]] = {}
        self._epochs: dict[int, _Sums] = {}
        self.ranks: dict[int, RankTotals] = {}

    def of(self, rank: int) -> RankTotals:
        return self.ranks.setdefault(rank, RankTotals())

    def plan(self, command: Plan) -> None:
        self._leases.update(zip(command.plans, command.leases))

    def arrive(self, event: Arrived, metrics: Sums) -> None:
        totals = self.of(event.rank)
        totals.trained_steps += event.steps
        totals.compute_ms += event.compute_ms
        totals.wait_ms += event.wait_ms
        lease = self._leases.pop(event.plan, None)
        if lease is not None:
            self._reports[lease] = _Sums((event.loss * event.steps, float(event.steps)), dict(metrics))

    def reduced(self, event: Reduced, extras: dict[str, Any]) -> None:
        for rank in event.ranks:
            self.averaged(rank, extras)

    def averaged(self, rank: int, costs: dict[str, Any]) -> None:
        """A rank exchanged weights or gradients at this cost."""
        totals = self.of(rank)
        totals.reduce_wait_ms += costs.get("wait_ms", 0.0)
        totals.reduce_ms += costs.get("reduce_ms", 0.0)
        totals.num_bytes += costs.get("num_bytes", 0)

    def reduce(self, window: int, work: dict[int, list[tuple[Lease, int]]]) -> None:
        """A reduction of this work starts, or starts again."""
        self._work[window] = [each for leases in work.values() for each in leases]

    def forget(self, rank: int) -> None:
        """Work of this rank that is not in the open reduction will not be committed."""
        kept = {lease for work in self._work.values() for lease, _ in work}
        self._reports = {
            lease: sums for lease, sums in self._reports.items() if lease.rank != rank or lease in kept
        }
        self._leases = {plan: lease for plan, lease in self._leases.items() if lease.rank != rank}

    def commit(self, command: Commit, committed: int) -> CommitReport:
        window, work = _Sums(), []
        for lease, steps in self._work.pop(command.window, []):
            sums = self._reports.pop(lease, _Sums())
            window.add(sums)
            self._epochs.setdefault(lease.epoch, _Sums()).add(sums)
            ranges = first_batches(lease.ranges, steps, self._batch_size)
            totals = self.of(lease.rank)
            totals.steps += steps
            totals.samples += sum(stop - start for start, stop in ranges)
            work.append((lease.rank, lease.epoch, steps, ranges))
        loss, metrics = window.means()
        return CommitReport(command, committed, loss, metrics, work, window.metrics)

    def epochs(self) -> dict[int, dict[str, float]]:
        """Return the means of each epoch: its loss and its metrics."""
        found = {}
        for epoch, sums in sorted(self._epochs.items()):
            loss, metrics = sums.means()
            found[epoch] = ({} if loss is None else {"loss": loss}) | metrics
        return found


def first_batches(ranges: tuple[Range, ...], batches: int, batch_size: int) -> tuple[Range, ...]:
    """Return the positions of the first batches of a lease.

    >>> first_batches(((0, 8), (12, 20)), 3, 4)
    ((0, 8), (12, 16))
    """
    found = []
    for start, stop in ranges:
        if not batches:
            break
        middle = min(stop, start + batches * batch_size)
        batches -= -(-(middle - start) // batch_size)
        found.append((start, middle))
    return tuple(found)
