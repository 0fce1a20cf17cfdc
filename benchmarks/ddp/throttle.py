"""Ranks of unequal speed on one machine: sleep, a share of the CPU, or a lower priority."""

from __future__ import annotations

import atexit
import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CPU_GROUPS = Path("/sys/fs/cgroup/cpu")
QUOTA_PERIOD_US = 20_000
# The share of a core that a fast rank has; a slow one has a fraction of it.
FAST_SHARE = 0.4


@dataclass(frozen=True)
class Scenario:
    """The speeds of three ranks. `slow` names the slow rank of each phase, in a cycle; -1 means none.

    `kind` is how ranks are slowed down. "pace": a step takes a fixed time for each sample, and sleeps until
    then. "sleep": the slow rank sleeps in proportion to its measured time. "quota": each rank has a share of
    a core. "nice": the slow rank has the lowest priority.

    >>> drift = Scenario("drift", slow=(2, 0), phase_s=2.0)
    >>> [drift.ratio_of(rank, elapsed_s=3.0) for rank in range(3)]
    [4.0, 1.0, 1.0]
    """

    name: str
    slow: tuple[int, ...] = (2,)
    phase_s: float = math.inf
    kind: str = "pace"
    fast_ms: float = 10.0
    ratio: float = 4.0

    def ratio_of(self, rank: int, elapsed_s: float) -> float:
        """Return how many times slower than a fast rank this one is."""
        phase = 0 if math.isinf(self.phase_s) else int(elapsed_s / self.phase_s)
        return self.ratio if self.slow[phase % len(self.slow)] == rank else 1.0


SCENARIOS = {
    each.name: each
    for each in (
        Scenario("4:4:1"),
        Scenario("drifting", slow=(2, 0, 1), phase_s=2.0),
        Scenario("equal", slow=(-1,)),
        Scenario("4:4:1 sleep", kind="sleep"),
        Scenario("4:4:1 quota", kind="quota"),
        Scenario("4:4:1 nice", kind="nice"),
    )
}


class Throttle:
    """Slows a rank down: call `begin` before the forward pass, and `pause` between forward and backward.

    `spans` has the start and the end of the work of each step. Communication is not part of it.
    """

    def __init__(self, scenario: Scenario, rank: int, batch_size: int) -> None:
        self._scenario, self._rank, self._batch_size = scenario, rank, batch_size
        self._first_s: float | None = None
        self._began_s = self._late_s = 0.0
        # The time of the backward pass and the update, which follow the pause.
        self.rest_s = 0.0
        self.spans: list[tuple[float, float]] = []
        if scenario.kind == "quota":
            _join_group(rank, FAST_SHARE / scenario.ratio_of(rank, 0.0))
            atexit.register(self.leave)
        elif scenario.kind == "nice" and scenario.ratio_of(rank, 0.0) > 1.0:
            os.nice(19)

    def leave(self) -> None:
        """The run is over: what follows is not slowed down."""
        if self._scenario.kind == "quota":
            (CPU_GROUPS / "cgroup.procs").write_text(str(os.getpid()))

    def begin(self) -> None:
        self._began_s = time.monotonic()
        if self._first_s is None:
            self._first_s = self._began_s

    def pause(self, num_samples: int) -> None:
        if self._first_s is None:
            return
        scenario = self._scenario
        ratio = scenario.ratio_of(self._rank, self._began_s - self._first_s)
        if scenario.kind == "pace":
            self._pace(ratio * scenario.fast_ms / 1000.0 * num_samples / self._batch_size)
        elif scenario.kind == "sleep":
            time.sleep((ratio - 1.0) * (time.monotonic() - self._began_s + self.rest_s))
        self.spans.append((self._began_s, time.monotonic() + self.rest_s))

    def _pace(self, cost_s: float) -> None:
        """Sleep until the step has taken this time. A sleep that took too long makes the next one shorter."""
        due_s = self._began_s + cost_s - self.rest_s - self._late_s
        left_s = due_s - time.monotonic()
        if left_s > 0.0:
            time.sleep(left_s)
        self._late_s = min(max(0.0, time.monotonic() - due_s), cost_s)


def quota_works() -> bool:
    """Return whether this process may limit the CPU time of its ranks."""
    folder = CPU_GROUPS / f"flodl-bench-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "cpu.cfs_quota_us").write_text("10000")
    except OSError:
        return False
    finally:
        with suppress(OSError):
            folder.rmdir()
    return True


def _join_group(rank: int, share: float) -> None:
    folder = CPU_GROUPS / f"flodl-bench-rank-{rank}"
    folder.mkdir(exist_ok=True)
    (folder / "cpu.cfs_period_us").write_text(str(QUOTA_PERIOD_US))
    (folder / "cpu.cfs_quota_us").write_text(str(round(share * QUOTA_PERIOD_US)))
    (folder / "cgroup.procs").write_text(str(os.getpid()))


def remove_groups() -> None:
    """Remove the groups of ranks that have ended."""
    for folder in CPU_GROUPS.glob("flodl-bench-rank-*"):
        with suppress(OSError):
            folder.rmdir()
