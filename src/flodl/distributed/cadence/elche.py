"""ElChe: how many batches each rank trains between two meetings, so that all arrive at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flodl.core import DistributedError

from .anchor import STABLE_AFTER, Anchor
from .guards import STABLE, Verdict
from .settings import CadenceSettings
from .shares import makespan, shares
from .speeds import Speeds

# Windows after which a resting rank trains one batch again, to measure its speed.
PROBE_RESTING_AFTER = 64


@dataclass(frozen=True, slots=True)
class Cadence:
    """The counts of the next window, and the reasons for everything that changed."""

    counts: dict[int, int]
    anchor: int
    phase: str
    window_ms: float
    resting: frozenset[int]
    reasons: tuple[str, ...]


class ElChe:
    """The slowest rank trains `anchor` batches, and a rank that is k times as fast about k times as many.

    >>> elche = ElChe(CadenceSettings(anchor=10), ranks=[0, 1])
    >>> elche.report(0, steps=10, compute_ms=100.0)
    >>> elche.report(1, steps=10, compute_ms=400.0)
    >>> cadence = elche.retune(reduce_ms=5.0)
    >>> cadence.counts, cadence.window_ms
    ({0: 40, 1: 10}, 400.0)
    """

    def __init__(self, settings: CadenceSettings | None = None, *, ranks: list[int] | None = None) -> None:
        self.settings = settings or CadenceSettings()
        self.counts: dict[int, int] = {}
        self.window_ms = 0.0
        self._speeds = Speeds(self.settings.num_reports)
        self._anchor = Anchor(self.settings)
        self._slow_rank: int | None = None
        self._resting: dict[int, int] = {}
        self._reported: set[int] = set()
        self._fill_ms: dict[int, float] = {}
        self._capped = False
        self._counted_for = 0
        self.total = 0
        for rank in ranks or ():
            self.join(rank)

    @property
    def anchor(self) -> int:
        return self._anchor.batches

    @property
    def ms(self) -> dict[int, float]:
        """The milliseconds per batch of every measured rank, all on the same scale; do not modify it."""
        return self._speeds.means

    def join(self, rank: int) -> None:
        """Add a rank of unknown speed; it starts with the count of the slowest."""
        if rank in self.counts:
            raise DistributedError(
                f"rank {rank} is already in the cadence. Remove it with leave({rank}) first."
            )
        self.counts[rank] = self._limit(rank, self._anchor.batches)
        self.total += self.counts[rank]

    def leave(self, rank: int) -> None:
        """Remove a rank and what was measured of it."""
        self.counts.pop(rank, None)
        self._resting.pop(rank, None)
        self._reported.discard(rank)
        self._fill_ms.pop(rank, None)
        self._speeds.forget(rank)
        if rank == self._slow_rank:
            self._slow_rank = None
        if len(self._resting) == len(self.counts):
            # Somebody has to work.
            self._resting = {}
            self.counts = {rank: self._limit(rank, self._anchor.batches) for rank in self.counts}
        self.total = sum(self.counts.values())

    def report(
        self, rank: int, *, steps: int, compute_ms: float, delivered_ms: float = 0.0, fill_ms: float = 0.0
    ) -> None:
        """Add the time of the `steps` batches that a rank actually trained, without waiting for other ranks.

        `fill_ms` is the fixed cost of starting a window, for example to fill the input pipeline.
        """
        if rank in self.counts and self._speeds.report(
            rank, steps=steps, compute_ms=compute_ms, delivered_ms=delivered_ms
        ):
            self._reported.add(rank)
            self._fill_ms[rank] = fill_ms

    def retune(
        self, *, reduce_ms: float, verdict: Verdict = STABLE, batches_left: int | None = None
    ) -> Cadence:
        """Choose the counts of the next window; call it once per window.

        `reduce_ms` is the time from the last arrival to the completed reduction. Waiting for other ranks is
        an imbalance, which the counts correct; only the cost of reducing makes windows longer.
        """
        reasons: list[str] = []
        if self._reported:
            for rank in self.counts.keys() - self._reported - self._resting.keys():
                if self._speeds.miss(rank):
                    reasons.append(f"the speed of rank {rank} is unknown: it missed its last reports")
            self._reported.clear()
        slow_ms = self._pace()
        if slow_ms > 0.0:
            fill_ms = self._fill_ms.get(self._slow_rank, 0.0) if self._slow_rank is not None else 0.0
            changed = self._anchor.tune(
                slow_ms=slow_ms, reduce_ms=reduce_ms, fill_ms=fill_ms, verdict=verdict, capped=self._capped
            )
            reasons += [changed] if changed else []
            self._recount(slow_ms, reasons)
        self._fit(batches_left, reasons)
        self.total = sum(self.counts.values())
        counts = self.counts
        self.window_ms = max([counts[rank] * ms for rank, ms in self.ms.items()], default=0.0)
        return Cadence(
            dict(self.counts),
            self._anchor.batches,
            self._anchor.phase,
            self.window_ms,
            frozenset(self._resting),
            tuple(reasons),
        )

    def pace_setters(self) -> list[int]:
        """Return the ranks that are about as slow as the one that sets the pace."""
        slow_ms = self.ms.get(self._slow_rank, 0.0) if self._slow_rank is not None else 0.0
        least = slow_ms * (1 - self.settings.cohort)
        return [rank for rank, ms in self.ms.items() if slow_ms and ms >= least and rank not in self._resting]

    def _pace(self) -> float:
        """Return the time per batch of the rank that sets the pace; a slightly slower rank does not."""
        means, resting = self._speeds.means, self._resting
        slowest, slow_ms = None, 0.0
        for rank, ms in means.items():
            if ms > slow_ms and rank not in resting:
                slowest, slow_ms = rank, ms
        known = means.get(self._slow_rank, 0.0) if self._slow_rank is not None else 0.0
        settled = self._anchor.num_windows >= STABLE_AFTER and self._slow_rank not in resting
        if settled and slow_ms <= known * (1 + self.settings.challenge):
            return known
        self._slow_rank = slowest
        return slow_ms

    def _recount(self, slow_ms: float, reasons: list[str]) -> None:
        """Set every count from the speeds, if it is off by more than the dead zone."""
        means, counts, anchor = self._speeds.means, self.counts, self._anchor.batches
        most, dead_zone = self.settings.max_ratio, self.settings.dead_zone
        fresh = self._counted_for != anchor
        limits, capped = self.settings.max_batches, False
        self._release_resting(reasons)
        for rank, current in counts.items():
            ms = means.get(rank)
            ratio = slow_ms / ms if ms else 1.0
            if ratio > most:
                ratio, capped = most, True
            target = max(1, round(anchor * ratio))
            if rank in limits and target > limits[rank]:
                target, capped = limits[rank], True
            if fresh or abs(target - current) > dead_zone * current:
                counts[rank] = target
        self._counted_for = anchor
        self._capped = capped
        if capped or self._resting:
            self._rest(reasons)

    def _rest(self, reasons: list[str]) -> None:
        """Assign no batches to ranks for which all others would have to wait."""
        means, counts, limits = self._speeds.means, self.counts, self.settings.max_batches
        for rank in self._resting:
            counts[rank] = 0
        while True:
            active = {rank: means[rank] for rank, count in counts.items() if count and rank in means}
            if len(active) < 2:
                return
            slowest = max(active, key=lambda rank: active[rank])
            with_it = makespan({rank: counts[rank] for rank in active}, active)
            others = {rank: ms for rank, ms in active.items() if rank != slowest}
            total = sum(counts[rank] for rank in active)
            without = makespan(shares(total, others, max_batches=limits), others)
            if with_it <= without * (1 + self.settings.rest_margin):
                return
            counts[slowest] = 0
            self._resting[slowest] = PROBE_RESTING_AFTER
            reasons.append(
                f"rank {slowest} rests: with its {active[slowest]:.3g} ms per batch, a window takes "
                f"{with_it:.4g} ms; the other ranks alone train the same batches in {without:.4g} ms"
            )
            slow_ms = max(others.values())
            for other in others:
                ratio = min(slow_ms / others[other], self.settings.max_ratio)
                counts[other] = self._limit(other, max(1, round(self._anchor.batches * ratio)))

    def _release_resting(self, reasons: list[str]) -> None:
        for rank in list(self._resting):
            self._resting[rank] -= 1
            if self._resting[rank] <= 0:
                del self._resting[rank]
                self._speeds.forget(rank)
                self.counts[rank] = 1
                reasons.append(f"rank {rank} trains again, to measure its speed")

    def _fit(self, batches_left: int | None, reasons: list[str]) -> None:
        """Limit the sum of the counts to the batches that are left in the epoch."""
        if batches_left is None or sum(self.counts.values()) <= batches_left:
            return
        self._capped = True
        self._counted_for = 0
        slow = max(self.ms.values(), default=1.0)
        ms = {rank: self.ms.get(rank, slow) for rank, count in self.counts.items() if count}
        fitted = shares(batches_left, ms, max_batches=self.settings.max_batches)
        until = makespan(fitted, ms)
        for rank, count in fitted.items():
            # With fewer batches than ranks, some get none at any speed.
            if not count and batches_left >= len(ms):
                reasons.append(
                    f"rank {rank} gets none of the last {batches_left} batches: one takes {ms[rank]:.4g} ms, "
                    f"and the other ranks finish all of them in {until:.4g} ms"
                )
        self.counts |= fitted

    def _limit(self, rank: int, count: int) -> int:
        return min(count, self.settings.max_batches.get(rank, count))

    def state(self) -> dict[str, Any]:
        return {
            "counts": [list(pair) for pair in self.counts.items()],
            "window_ms": self.window_ms,
            "speeds": self._speeds.state(),
            "anchor": self._anchor.state(),
            "slow_rank": self._slow_rank,
            "resting": [list(pair) for pair in self._resting.items()],
            "reported": sorted(self._reported),
            "fill_ms": [list(pair) for pair in self._fill_ms.items()],
            "capped": self._capped,
            "counted_for": self._counted_for,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.counts = dict(state["counts"])
        self.total = sum(self.counts.values())
        self.window_ms = state["window_ms"]
        self._speeds.restore(state["speeds"])
        self._anchor.restore(state["anchor"])
        self._slow_rank = state["slow_rank"]
        self._resting = dict(state["resting"])
        self._reported = set(state["reported"])
        self._fill_ms = dict(state["fill_ms"])
        self._capped, self._counted_for = state["capped"], state["counted_for"]
