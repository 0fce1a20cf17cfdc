"""Messages between the supervisor and a rank, in addition to the commands and events of a coordinator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flodl.distributed.coordination import Event, SavePoint

from .faults import Fault
from .worker import RankInfo

# To a rank.


@dataclass(frozen=True, slots=True)
class Start:
    """The first message: what the rank trains, and where it finds the others.

    `payload` is the pickled pair of the factories of worker and reducer.
    """

    info: RankInfo
    payload: bytes
    store: tuple[str, int]
    # The version that the run starts from.
    version: int = 0
    # Whether the reduction runs in a thread while the rank trains on.
    is_ahead: bool = False
    # Whether the rank reports a hash of each version that it adopts.
    digests: bool = False
    # CPU threads of operators; None keeps torch's choice.
    threads: int | None = None
    # Seconds between two signs of life.
    beat_s: float = 1.0
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class Save:
    """Save a version with the state of the coordinator."""

    point: SavePoint
    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Donate:
    """Send the optimizer state for another rank."""

    to: int


@dataclass(frozen=True, slots=True)
class Receive:
    """The optimizer state of another rank; None if nobody could donate it."""

    data: bytes | None


@dataclass(frozen=True, slots=True)
class Tell:
    """What the caller has to say to every worker, such as another learning rate."""

    data: Any


@dataclass(frozen=True, slots=True)
class Fetch:
    """Send the consensus."""


@dataclass(frozen=True, slots=True)
class End:
    """Leave the loop, and end the process."""

    reason: str


# From a rank.


@dataclass(frozen=True, slots=True)
class Report:
    """An event for the coordinator, with more numbers for the run log."""

    event: Event
    extras: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life. `progress` is another number after each batch and each message that was handled."""

    progress: int


@dataclass(frozen=True, slots=True)
class Adopted:
    """A rank adopted a version; a hash of the weights shows that all replicas are identical."""

    rank: int
    version: int
    digest: str


@dataclass(frozen=True, slots=True)
class Saved:
    """What the worker returned for a save point, pickled."""

    version: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Donation:
    to: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Consensus:
    """The bytes of the consensus, what the worker would donate, and the state of the outer optimizer."""

    version: int
    data: bytes
    dtype: str
    donated: bytes
    outer: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception in the code of a rank, which then ends."""

    rank: int
    host: str
    pid: int
    step: int
    doing: str
    error: str
    traceback: str
    # The line of the user's code, if there is one.
    line: str = ""

    def __str__(self) -> str:
        return f"{self.first_line}\n{self.traceback}".rstrip()

    @property
    def first_line(self) -> str:
        """What happened where, without the traceback."""
        where = f"rank {self.rank} on {self.host} (process {self.pid})"
        return f"{where} failed at step {self.step}, {self.doing}: {self.error}"
