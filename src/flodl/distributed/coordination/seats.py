"""What a coordinator knows about each rank, and about the reduction in progress."""

from __future__ import annotations

from typing import Any

from flodl.distributed.coverage import Lease

# Work that is done but not committed: a lease, and how many of its batches were trained.
Work = list[tuple[Lease, int]]
# The base of a rank that has to receive the current version before it can train.
NO_VERSION = -1


class Seat:
    """One rank: the version it started from, the lease it trains, and work that waits for a window."""

    __slots__ = (
        "base",
        "is_leaving",
        "is_recalled",
        "lease",
        "plan",
        "rank",
        "ready",
        "ready_steps",
        "reducing_steps",
    )

    def __init__(self, rank: int, base: int = NO_VERSION) -> None:
        self.rank, self.base = rank, base
        self.plan = -1
        self.lease: Lease | None = None
        self.ready: Work = []
        self.ready_steps = 0
        self.reducing_steps = 0
        self.is_leaving = False
        # Its work is too old: others train its batches, and what it brings does not count.
        self.is_recalled = False

    @property
    def is_idle(self) -> bool:
        return self.lease is None and not self.ready

    def state(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "base": self.base,
            "plan": self.plan,
            "lease": lease_state(self.lease),
            "ready": [[lease_state(lease), steps] for lease, steps in self.ready],
            "reducing_steps": self.reducing_steps,
            "is_leaving": self.is_leaving,
            "is_recalled": self.is_recalled,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Seat:
        seat = cls(state["rank"], state["base"])
        seat.plan, seat.is_leaving = state["plan"], state["is_leaving"]
        seat.is_recalled = state["is_recalled"]
        seat.lease = lease_from(state["lease"]) if state["lease"] else None
        seat.ready = [(lease_from(lease), steps) for lease, steps in state["ready"]]
        seat.ready_steps = sum(steps for _, steps in seat.ready)
        seat.reducing_steps = state["reducing_steps"]
        return seat


class Round:
    """A reduction in progress: its members, their work, and who has not reported yet."""

    __slots__ = ("attempt", "bases", "deadline_ms", "divergence", "donor", "failures", "generation", "late",
                 "members",
                 "patience", "reduce_ms", "scale", "timeout_ms", "waiting", "weights", "work")  # fmt: skip

    def __init__(
        self,
        members: tuple[int, ...],
        weights: tuple[int, ...],
        bases: tuple[int, ...],
        work: dict[int, Work],
        late: tuple[int, ...],
    ) -> None:
        self.members, self.weights, self.bases = members, weights, bases
        self.work, self.late = work, late
        self.attempt = 0
        self.deadline_ms = 0.0
        self.scale = self.patience = 1.0
        self.begin(NO_VERSION, 0, 0.0)

    def begin(self, donor: int, generation: int, timeout_ms: float) -> None:
        """Wait for all members."""
        self.donor, self.generation, self.timeout_ms = donor, generation, timeout_ms
        self.waiting = set(self.members)
        self.failures: list[str] = []
        self.reduce_ms = 0.0
        self.divergence: float | None = None

    def remove(self, ranks: set[int]) -> None:
        """Continue with the other members, in another attempt."""
        kept = [index for index, rank in enumerate(self.members) if rank not in ranks]
        self.members = tuple(self.members[index] for index in kept)
        self.weights = tuple(self.weights[index] for index in kept)
        self.bases = tuple(self.bases[index] for index in kept)
        self.attempt += 1

    def state(self) -> dict[str, Any]:
        return {
            "members": list(self.members),
            "weights": list(self.weights),
            "bases": list(self.bases),
            "work": [
                [rank, [[lease_state(lease), steps] for lease, steps in work]]
                for rank, work in self.work.items()
            ],
            "late": list(self.late),
            "donor": self.donor,
            "scale": self.scale,
            "patience": self.patience,
            "attempt": self.attempt,
            "generation": self.generation,
            "waiting": sorted(self.waiting),
            "failures": self.failures,
            "reduce_ms": self.reduce_ms,
            "divergence": self.divergence,
            "timeout_ms": self.timeout_ms,
            "deadline_ms": self.deadline_ms,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Round:
        done = {rank: [(lease_from(lease), steps) for lease, steps in work] for rank, work in state["work"]}
        members, weights, bases, late = (
            tuple(state[name]) for name in ("members", "weights", "bases", "late")
        )
        found = cls(members, weights, bases, done, late)
        found.donor, found.attempt, found.generation = state["donor"], state["attempt"], state["generation"]
        found.waiting, found.failures = set(state["waiting"]), list(state["failures"])
        found.reduce_ms, found.divergence = state["reduce_ms"], state["divergence"]
        found.timeout_ms, found.deadline_ms = state["timeout_ms"], state["deadline_ms"]
        found.scale, found.patience = state["scale"], state["patience"]
        return found


def lease_state(lease: Lease | None) -> list[Any] | None:
    return None if lease is None else list(lease)


def lease_from(state: list[Any]) -> Lease:
    ticket, rank, window, batches, ranges, epoch = state
    return Lease(ticket, rank, window, batches, tuple((start, stop) for start, stop in ranges), epoch)
