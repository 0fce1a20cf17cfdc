"""Faults that tests inject at points of the protocol; without any, a point costs one comparison."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from flodl.core import DistributedError

# In the order in which a rank passes them in a window.
POINTS = (
    "start",  # its process runs, and its worker is not created yet
    "plan",  # it received a plan
    "batch",  # before a batch of the window
    "arrive",  # the plan is trained, and not reported yet
    "reduce",  # it was asked to reduce; the other members wait for it in the reduction
    "reduced",  # it has the result, and did not report that
    "reported",  # it reported the result, and waits for the commit
    "commit",  # it received the commit, and did not adopt the version yet
    "adopted",  # it adopted the version
    "save",  # it was asked to save
    "donate",  # it was asked for its optimizer state
)
ACTIONS = ("kill", "stop", "raise", "exit", "sleep")


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to a rank at a point of a window: once, at the first visit after `skip` others.

    `kill` and `stop` are SIGKILL and SIGSTOP, `exit` ends the process with code 3, `raise` raises an error,
    `sleep` takes `ms` milliseconds, at each visit from then on.
    """

    rank: int
    point: str
    window: int
    action: str = "kill"
    skip: int = 0
    ms: float = 0.0

    def __post_init__(self) -> None:
        for name, known in (("point", POINTS), ("action", ACTIONS)):
            if getattr(self, name) not in known:
                raise DistributedError(
                    f"expected one of {', '.join(known)}, got {getattr(self, name)!r}.", path=name
                )


class Faults:
    """The faults of one rank.

    >>> faults = Faults((Fault(0, "plan", 2, "raise"),), rank=0)
    >>> faults.reach("plan", 1)
    >>> faults.reach("plan", 2)
    Traceback (most recent call last):
    RuntimeError: a fault was injected at 'plan' of window 2
    """

    def __init__(self, faults: tuple[Fault, ...], rank: int) -> None:
        self._faults = [each for each in faults if each.rank == rank]
        self._visits: dict[Fault, int] = {}

    def reach(self, point: str, window: int) -> None:
        if not self._faults:
            return
        for fault in self._faults:
            if fault.point == point and fault.window == window:
                visits = self._visits[fault] = self._visits.get(fault, 0) + 1
                if visits == fault.skip + 1 or (fault.action == "sleep" and visits > fault.skip):
                    _act(fault)


def _act(fault: Fault) -> None:
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault.action == "sleep":
        time.sleep(fault.ms / 1000.0)
    elif fault.action == "exit":
        raise SystemExit(3)
    else:
        raise RuntimeError(f"a fault was injected at {fault.point!r} of window {fault.window}")
