"""Turning counts into leases: who trains how much next, and by when it should be back."""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Sequence
from typing import Any

from flodl.distributed.cadence import ElChe, shares
from flodl.distributed.coverage import Epochs

from .commands import Plan
from .seats import Seat
from .settings import SuspicionSettings

# A last window of less than this share of a window is merged with the one before.
_CRUMBS = 0.1


class Planner:
    """Leases batches to ranks, numbers the plans, and keeps the deadline of each."""

    def __init__(self, elche: ElChe, epochs: Epochs, suspicion: SuspicionSettings) -> None:
        self._elche, self._epochs, self._suspicion = elche, epochs, suspicion
        self.num_plans = 0
        self._deadlines: list[tuple[float, int, int]] = []

    def plan(
        self,
        seats: Sequence[Seat],
        *,
        window: int,
        generation: int,
        committed: int,
        now_ms: float,
        share: float = 1.0,
    ) -> Plan | None:
        """Lease to each of the seats this share of its count, or a share of what is left of the epoch."""
        counts, free = self._elche.counts, self._epochs.free_batches
        if share < 1.0:
            counts = {seat.rank: math.ceil(share * counts[seat.rank]) for seat in seats}
        total = sum([counts[seat.rank] for seat in seats])
        reason = f"counts by speed, {total} batches"
        # The counts cover the whole rest of the epoch, and ranks at work do not come back for their part.
        is_rest = share == 1.0 and self._elche.total >= free
        if total > free or total == 0 or is_rest or (free - total <= _CRUMBS * total and free > total):
            counts = self._split(seats, free)
            reason = f"the last {free} batches"
        return self._grant(seats, counts, window, generation, committed, now_ms, reason)

    def plan_ahead(
        self,
        seat: Seat,
        max_windows: float,
        *,
        window: int,
        generation: int,
        committed: int,
        now_ms: float,
        until_ms: float,
    ) -> Plan | None:
        """Let one rank continue before its last work is committed, until about the next meeting."""
        count = self._elche.counts[seat.rank]
        ms = self._elche.ms.get(seat.rank)
        if ms and count and until_ms > now_ms:
            # Early ranks get a little more and late ones less, so that all are back for the next meeting.
            most = min(int(max_windows * count), self._elche.settings.max_batches.get(seat.rank, sys.maxsize))
            count = max(1, min(most, round((until_ms - now_ms) / ms)))
        # Near the end, take a fair share of what is left.
        free, total = self._epochs.free_batches, self._elche.total
        if count:
            count = min(count, max(1, math.ceil(free * self._elche.counts[seat.rank] / total)))
        return self._grant(
            (seat,),
            {seat.rank: count},
            window,
            generation,
            committed,
            now_ms,
            "it continues ahead of the meeting",
        )

    def _split(self, seats: Sequence[Seat], free: int) -> dict[int, int]:
        counts, ms = self._elche.counts, self._elche.ms
        slowest = max(ms.values(), default=1.0)
        active = [seat.rank for seat in seats if counts[seat.rank]] or [seat.rank for seat in seats]
        split = shares(
            free,
            {rank: ms.get(rank, slowest) for rank in active},
            max_batches=self._elche.settings.max_batches,
        )
        return dict.fromkeys((seat.rank for seat in seats), 0) | split

    def _grant(
        self,
        seats: Sequence[Seat],
        counts: dict[int, int],
        window: int,
        generation: int,
        committed: int,
        now_ms: float,
        reason: str,
    ) -> Plan | None:
        plans, leases, planned = [], [], []
        ms, grant, suspicion, number = self._elche.ms, self._epochs.grant, self._suspicion, self.num_plans
        for seat in seats:
            rank = seat.rank
            lease = grant(rank, window=window, batches=counts[rank])
            if lease is None:
                continue
            seat.lease, seat.plan = lease, number
            plans.append(number)
            leases.append(lease)
            planned.append(seat)
            wait_ms = suspicion.deadline_ms(ms[rank] * lease.batches if rank in ms else None)
            heapq.heappush(self._deadlines, (now_ms + wait_ms, number, rank))
            number += 1
        self.num_plans = number
        if not plans:
            return None
        if len(seats) < len(self._elche.counts):
            positions = tuple([self.position(seat, committed) for seat in planned])
        else:
            total = sum([lease.batches for lease in leases])
            positions = tuple([(float(committed), total / lease.batches) for lease in leases])
        return Plan(window, generation, tuple(plans), tuple(leases), positions, reason)

    def position(self, seat: Seat, committed: int) -> tuple[float, float]:
        """Return where a rank starts on the learning rate curve, and how far one step moves it."""
        per_step = max(1.0, self._elche.total / max(1, self._elche.counts[seat.rank]))
        return committed + (seat.ready_steps + seat.reducing_steps) * per_step, per_step

    def next_deadline_ms(self, seats: dict[int, Seat]) -> float:
        """Return when the next plan is overdue; infinity if no rank is at work."""
        deadlines = self._deadlines
        while deadlines:
            when, plan, rank = deadlines[0]
            seat = seats.get(rank)
            if seat is not None and seat.plan == plan and seat.lease is not None:
                return when
            heapq.heappop(deadlines)
        return math.inf

    def overdue(self, seats: dict[int, Seat], now_ms: float) -> list[int]:
        """Return the ranks whose plans should have been finished long ago."""
        if self.next_deadline_ms(seats) > now_ms:
            return []
        return [
            rank
            for when, plan, rank in sorted(self._deadlines)
            if when <= now_ms and rank in seats and seats[rank].plan == plan and seats[rank].lease is not None
        ]

    def postpone(self, seats: dict[int, Seat], now_ms: float) -> None:
        """Look again later at all that is overdue."""
        again_ms = now_ms + self._suspicion.again_ms
        while self.next_deadline_ms(seats) <= now_ms and self._deadlines:
            _, plan, rank = self._deadlines[0]
            heapq.heapreplace(self._deadlines, (again_ms, plan, rank))

    def state(self) -> dict[str, Any]:
        return {"num_plans": self.num_plans, "deadlines": [list(each) for each in sorted(self._deadlines)]}

    def restore(self, state: dict[str, Any]) -> None:
        self.num_plans = state["num_plans"]
        self._deadlines = [(when, plan, rank) for when, plan, rank in state["deadlines"]]
