"""Telling a signal for the whole process group from one for this process alone."""

from __future__ import annotations

import signal
import subprocess
from typing import Self

_DELIVERY_S = 0.2  # a machine that is busy takes a moment to end a process


class GroupSignals:
    """Tells whether a signal that this process received was sent to its whole process group.

    The signal itself does not say so. A second process in the group does: it does nothing, so a signal
    for the group ends it. It also ends when this process does, because its input is closed then.

    >>> with GroupSignals() as group:
    ...     group.received()
    False
    """

    def __init__(self) -> None:
        self._other: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._other is not None:
            self._other.kill()
            self._close(self._other)

    def received(self) -> bool:
        """Return whether the group received a signal since the last call."""
        if self._other is None:
            return False
        try:
            self._other.wait(_DELIVERY_S)
        except subprocess.TimeoutExpired:
            return False
        self._close(self._other)
        self._start()  # for the next signal
        return True

    def _start(self) -> None:
        none = subprocess.DEVNULL
        try:
            self._other = subprocess.Popen(
                ["cat"], stdin=subprocess.PIPE, stdout=none, stderr=none, preexec_fn=_unblock_signals
            )
        except OSError:  # this system has no such program
            self._other = None

    def _close(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
        self._other = None


def _unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # this process may wait for signals, with all blocked
