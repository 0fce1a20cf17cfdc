"""What a coordinator reacts to. Events are plain data, so that a journal can hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Joined:
    """A process wants to take part as this rank."""

    rank: int


@dataclass(frozen=True, slots=True)
class Leaving:
    """A rank wants to leave; it stays until its work is committed."""

    rank: int


# One per rank and window: a named tuple is created several times faster than a frozen dataclass.
class Arrived(NamedTuple):
    """A rank finished a plan: the batches it actually trained, and the time they took.

    `delivered_ms` includes waiting for data; 0 means that it was not measured. `fill_ms` is the fixed cost of
    starting a window, `wait_ms` the time that the rank waited for others since its last arrival.
    """

    rank: int
    generation: int
    plan: int
    steps: int
    compute_ms: float
    delivered_ms: float = 0.0
    fill_ms: float = 0.0
    wait_ms: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True, slots=True)
class Reduced:
    """Ranks completed a reduction.

    Its time counts from the last arrival to completion, not only to its launch; after a failure, from the
    start of the attempt that succeeded.
    """

    ranks: tuple[int, ...]
    window: int
    generation: int
    reduce_ms: float
    divergence: float | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A rank could not complete a reduction."""

    rank: int
    window: int
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """A rank is gone: its process ended, whatever its exit code, or its connection did."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; send one at `Coordinator.wake_ms`.

    `alive` names those of `Coordinator.suspects` that show signs of life: they are late, and not lost.
    """

    alive: tuple[int, ...] = ()


Event = Joined | Leaving | Arrived | Reduced | Failed | Lost | Tick
