"""A limit on the time that one rival may take to get ready."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class OverBudget(BaseException):
    """The time is up. Not an `Exception`, because compilers catch those and carry on."""


@contextmanager
def budget(seconds: float) -> Iterator[None]:
    """Interrupt the block after some seconds; C++ that is running then ends first."""

    def stop(*_: object) -> None:
        raise OverBudget(f"was not ready after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
