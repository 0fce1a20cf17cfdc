"""The settings of a supervisor."""

from __future__ import annotations

from dataclasses import dataclass

from flodl.core import DistributedError
from flodl.core.integers import is_integer


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorSettings:
    """How long a supervisor waits for what a coordinator has no deadline for, in seconds.

    >>> SupervisorSettings(start_s=0.0)
    Traceback (most recent call last):
    flodl.core.errors.DistributedError: at 'start_s': expected a number above 0, got 0.0.
    """

    # From the start of a process until it has created its worker and joins.
    start_s: float = 600.0
    # After this time, a warning says that the rank has not started.
    slow_start_s: float = 60.0
    # For a save, including an evaluation in it; the deadlines of the coordinator stand still meanwhile.
    save_s: float = 3600.0
    # For the optimizer state of a donor; a rank that joins starts without it afterwards.
    donate_s: float = 120.0
    # At the end, for the consensus and for the exit of a process.
    fetch_s: float = 120.0
    end_s: float = 10.0
    # Ranks send a sign of life this often. One that is late counts as lost after this silence, and one that
    # is heard of, if it did not finish a batch for so long.
    beat_s: float = 1.0
    silence_s: float = 5.0
    stuck_s: float = 180.0
    # How many lost ranks are replaced by new ones.
    restarts: int = 0
    # Ranks hash each version that they adopt; the run log shows that replicas are identical.
    digests: bool = False

    def __post_init__(self) -> None:
        for name in (
            "start_s",
            "slow_start_s",
            "save_s",
            "donate_s",
            "fetch_s",
            "end_s",
            "beat_s",
            "silence_s",
            "stuck_s",
        ):
            if not getattr(self, name) > 0.0:
                raise DistributedError(f"expected a number above 0, got {getattr(self, name)!r}.", path=name)
        if not is_integer(self.restarts, at_least=0):
            raise DistributedError(
                f"expected an integer of at least 0, got {self.restarts!r}.", path="restarts"
            )
