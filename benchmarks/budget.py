"""A limit on the setup time of a rival."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class OverBudget(BaseException):
    """Raised when the time is up. Not an `Exception`, because compilers catch those and continue."""


@contextmanager
def budget(seconds: float) -> Iterator[None]:
    """Interrupt the block after `seconds`; running C++ code finishes first."""

    def stop(*_: object) -> None:
        raise OverBudget(f"was not ready after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
