"""The settings of a coordinator."""

from __future__ import annotations

from dataclasses import dataclass, field

from flodl.core import DistributedError
from flodl.core.integers import is_integer
from flodl.distributed.cadence import CadenceSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingSettings:
    """When a window closes. The defaults are a full barrier.

    >>> MeetingSettings(quorum=0.0)
    Traceback (most recent call last):
    flodl.core.errors.DistributedError: at 'quorum': expected a share above 0 and up to 1, got 0.0.
    """

    # The share of ranks that must have arrived, and the most time to wait for the others, as a share of the
    # window. How long it really waits adapts to how late ranks are.
    quorum: float = 1.0
    max_grace: float = 0.1
    # Windows that a rank may train beyond what is committed; 0 makes it wait for each reduction.
    max_ahead: int = 0
    # Versions by which a contribution may lag behind; the batches of an older one are trained by others.
    max_staleness: int = 4

    def __post_init__(self) -> None:
        if not 0.0 < self.quorum <= 1.0:
            raise DistributedError(
                f"expected a share above 0 and up to 1, got {self.quorum!r}.", path="quorum"
            )
        if not self.max_grace >= 0.0:
            raise DistributedError(
                f"expected a number of at least 0, got {self.max_grace!r}.", path="max_grace"
            )
        for name, least in (("max_ahead", 0), ("max_staleness", 1)):
            value = getattr(self, name)
            if not is_integer(value, at_least=least):
                raise DistributedError(f"expected an integer of at least {least}, got {value!r}.", path=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspicionSettings:
    """When a rank is suspected: after `factor` times the predicted time, and never below the floor.

    A rank that is suspected and shows no sign of life counts as lost; any other one is only late.

    >>> SuspicionSettings().deadline_ms(2000.0), SuspicionSettings().deadline_ms(None)
    (6000.0, 600000.0)
    """

    factor: float = 3.0
    floor_ms: float = 5000.0
    # For a rank of unknown speed, whose first batches may include compilation, and for the first reduction.
    unknown_ms: float = 600_000.0
    first_reduce_ms: float = 60_000.0
    # A reduction that hangs blocks all members. Those that live report a timeout; the others do not, for this
    # much longer.
    answer_ms: float = 1000.0
    # When to look again at a rank that is late.
    again_ms: float = 1000.0

    def deadline_ms(self, predicted_ms: float | None) -> float:
        if predicted_ms is None:
            return self.unknown_ms
        return max(self.factor * predicted_ms, self.floor_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """Everything that a coordinator needs to know about a run, next to its data."""

    cadence: CadenceSettings = field(default_factory=CadenceSettings)
    meeting: MeetingSettings = field(default_factory=MeetingSettings)
    suspicion: SuspicionSettings = field(default_factory=SuspicionSettings)
    guard: str = "level"
    # Ranks train each batch together, as with averaged gradients. So what one of them brings from a window
    # contains the work of all, and the window counts as a whole or not at all.
    shared: bool = False
    # Ranks that must have joined before the run starts, and ranks without which it stops.
    start_ranks: int = 1
    min_ranks: int = 1
    # Windows between two save points, in addition to one after each epoch; 0 means none.
    save_every: int = 0
    # The same in committed batches: a save point follows the window that completes each multiple.
    save_every_batches: int = 0
    # How often a reduction is repeated although no rank was lost.
    max_attempts: int = 3

    def __post_init__(self) -> None:
        for name, least in (("start_ranks", 1), ("min_ranks", 1), ("save_every", 0), ("max_attempts", 1),
                            ("save_every_batches", 0)):  # fmt: skip
            value = getattr(self, name)
            if not is_integer(value, at_least=least):
                raise DistributedError(f"expected an integer of at least {least}, got {value!r}.", path=name)
