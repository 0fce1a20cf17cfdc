"""Leaving on a signal: note it, finish the update, save, and end with a code of its own."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# What sysexits calls a temporary failure: everything is saved, start me again.
EXIT_CODE = 75


class Preempted(SystemExit):
    """Training was told to stop, has saved itself, and goes on when it is started again."""

    def __init__(self, name: str) -> None:
        super().__init__(EXIT_CODE)
        self.signal = name


class Notice:
    """Whether somebody asked the run to stop; polled between updates and between batches of evaluation."""

    def __init__(self) -> None:
        self.name = ""

    def __bool__(self) -> bool:
        return bool(self.name)

    def leave(self) -> None:
        """End the program with the code that says "saved"; a prompt is given back instead of closed."""
        name, self.name = self.name, ""
        if name == "SIGINT" and hasattr(sys, "ps1"):
            raise KeyboardInterrupt
        raise Preempted(name)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note SIGTERM, SIGINT and SIGUSR1 while this lasts; the second one ends the program at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        names = [name for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name)]
        before = {name: signal.signal(getattr(signal, name), self._note) for name in names}
        try:
            yield
        finally:
            for name, handler in before.items():
                signal.signal(getattr(signal, name), handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.name:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.name = signal.Signals(number).name
