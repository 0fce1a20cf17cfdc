"""What a coordinator asks its ranks and their supervisor to do, and why."""

from __future__ import annotations

from dataclasses import dataclass

from flodl.distributed.coverage import Lease


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Publish a new generation; its members form a new process group."""

    generation: int
    members: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Train these leases: one entry per rank. `positions` has where each starts on the learning rate curve,
    and how far one of its steps moves it."""

    window: int
    generation: int
    plans: tuple[int, ...]
    leases: tuple[Lease, ...]
    positions: tuple[tuple[float, float], ...]
    reason: str
    # The leases of all ranks, where a plan is sent to one of them.
    team: tuple[Lease, ...] = ()


@dataclass(frozen=True, slots=True)
class Reduce:
    """Average the progress of the members; an `attempt` above 0 repeats a reduction that failed.

    The new version is the current one plus scale · Σ weight · progress / Σ weight. The progress of a rank is
    what it changed since its base version. A member with weight 0 receives only. `donor` holds the current
    version. `scale` is below 1 if ranks are late: it leaves room for what they bring to a later window.
    After `timeout_ms`, a member reports a failure. Members keep what they contributed until the commit.
    """

    window: int
    generation: int
    attempt: int
    members: tuple[int, ...]
    weights: tuple[int, ...]
    bases: tuple[int, ...]
    donor: int
    timeout_ms: float
    reason: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Commit:
    """The reduction of this window is complete everywhere: its members adopt the new version."""

    window: int
    version: int
    members: tuple[int, ...]
    batches: int
    samples: int
    late: tuple[int, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SavePoint:
    """Save this version, not the weights that the writer trains, with the state of the coordinator."""

    version: int
    epoch: int
    writer: int
    reason: str


@dataclass(frozen=True, slots=True)
class Evict:
    """End this rank's process: it counts as lost."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """What this rank reported does not count; it drops its progress and waits for the next version."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """This rank may leave: all its work is committed."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Finished:
    """All epochs are committed."""

    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The run cannot continue; restart it from its last save point."""

    reason: str


Command = Rebuild | Plan | Reduce | Commit | SavePoint | Evict | Refuse | Release | Finished | Stop
