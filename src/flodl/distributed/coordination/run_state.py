"""Everything that a coordinator knows."""

from __future__ import annotations

from typing import Any

from flodl.distributed.cadence import ElChe, make_guard
from flodl.distributed.coverage import Epochs, Lease

from .commands import Command, Release, SavePoint, Stop
from .meeting import Meeting
from .membership import Membership
from .planner import Planner
from .seats import Round, Seat, lease_from, lease_state
from .settings import CoordinatorSettings

# Start of the stop reason when no rank holds the current weights; the version is appended.
NO_HOLDER = "no remaining rank holds version"
WAITING, RUNNING, FINISHED, STOPPED = "waiting", "running", "finished", "stopped"


class RunState:
    """The parts of a coordinator, and the commands of the event that is being handled."""

    def __init__(self, epochs: Epochs, settings: CoordinatorSettings) -> None:
        self.settings = settings
        self.epochs = epochs
        self.elche = ElChe(settings.cadence)
        self.guard = make_guard(settings.guard)
        self.membership = Membership()
        self.meeting = Meeting(settings.meeting)
        self.planner = Planner(self.elche, epochs, settings.suspicion)
        self.seats: dict[int, Seat] = {}
        self.round: Round | None = None
        # Windows that are committed, and their batches over all ranks.
        self.version = self.first_version = 0
        self.committed = 0
        self.status = WAITING
        self.closed_ms = 0.0
        # The time of the last reduction, by which the next one is judged.
        self.reduce_ms: float | None = None
        self.num_refused = 0
        # Leases of lost ranks in a window that others may still complete, where work is shared.
        self.orphans: list[Lease] = []
        self.out: list[Command] = []

    @property
    def is_over(self) -> bool:
        return self.status in (FINISHED, STOPPED)

    def has_holder(self) -> bool:
        """Return whether a living rank holds the current version."""
        return any(seat.base == self.version for seat in self.seats.values())

    def stop(self, reason: str) -> None:
        self.status = STOPPED
        self.out.append(Stop(reason))

    def forget(self, rank: int) -> None:
        """Remove a rank; batches that it did not bring to a reduction are free again."""
        seat = self.seats.pop(rank, None)
        if seat is None:
            return
        held = [] if seat.lease is None or seat.is_recalled else [seat.lease]
        self.orphans += [*held, *(lease for lease, _ in seat.ready)]
        self.meeting.drop(rank)
        self.elche.leave(rank)
        if not self.settings.shared or self.meeting.is_empty:
            self.free_orphans()

    def free_orphans(self) -> None:
        """Nobody will bring the work of lost ranks: let others train it."""
        for lease in self.orphans:
            self.epochs.give_back(lease)
        self.orphans = []

    def recall_stale(self) -> None:
        """Free the batches of ranks that lag too many versions behind; they are not lost, only late."""
        for rank in self.meeting.stale():
            seat = self.seats[rank]
            self.meeting.drop(rank)
            if seat.lease is not None:
                self.epochs.give_back(seat.lease)
                seat.is_recalled = True

    def plan(self, seats: list[Seat], now_ms: float) -> None:
        """Plan work for those of the seats that are idle and hold the current version."""
        idle = [
            seat
            for seat in seats
            if seat.lease is None and not seat.ready and seat.base == self.version and not seat.is_leaving
        ]
        share, window_ms = 1.0, self.elche.window_ms
        if self.settings.meeting.max_ahead and window_ms:
            # Others have not waited for the reduction: be back when they are.
            share = min(1.0, max(0.25, (self.closed_ms + window_ms - now_ms) / window_ms))
        plan = self.planner.plan(
            idle,
            share=share,
            window=self.version,
            generation=self.membership.generation,
            committed=self.committed,
            now_ms=now_ms,
        )
        if plan is not None:
            for lease in plan.leases:
                self.meeting.expect(lease.rank, base=self.version)
            self.out.append(plan)

    def release_leaving(self, seats: list[Seat]) -> None:
        """Release ranks that asked for it; the only one that holds the version stays until others do."""
        for seat in seats:
            if (
                seat.is_leaving
                and seat.is_idle
                and sum(s.base == self.version for s in self.seats.values()) > 1
            ):
                self.out.append(Release(seat.rank, "all its work is committed"))
                self.membership.leave(seat.rank)
                self.forget(seat.rank)

    def save(self, seats: list[Seat], reason: str) -> None:
        self.out.append(SavePoint(self.version, self.epochs.current, seats[0].rank, reason))

    def state(self) -> dict[str, Any]:
        """Return everything but the settings as plain data."""
        return {
            "epochs": self.epochs.state(),
            "elche": self.elche.state(),
            "guard": self.guard.state(),
            "membership": self.membership.state(),
            "meeting": self.meeting.state(),
            "planner": self.planner.state(),
            "seats": [seat.state() for seat in self.seats.values()],
            "round": self.round.state() if self.round else None,
            "version": self.version,
            "first_version": self.first_version,
            "committed": self.committed,
            "status": self.status,
            "closed_ms": self.closed_ms,
            "reduce_ms": self.reduce_ms,
            "num_refused": self.num_refused,
            "orphans": [lease_state(lease) for lease in self.orphans],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state()` was taken; `epochs` is already restored."""
        self.elche.restore(state["elche"])
        self.guard.restore(state["guard"])
        self.membership.restore(state["membership"])
        self.meeting.restore(state["meeting"])
        self.planner.restore(state["planner"])
        self.seats = {each["rank"]: Seat.from_state(each) for each in state["seats"]}
        self.round = Round.from_state(state["round"]) if state["round"] else None
        self.version, self.committed, self.status = state["version"], state["committed"], state["status"]
        self.closed_ms, self.reduce_ms = state["closed_ms"], state["reduce_ms"]
        self.num_refused, self.first_version = state["num_refused"], state["first_version"]
        self.orphans = [lease_from(lease) for lease in state["orphans"]]
