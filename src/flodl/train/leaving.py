"""Leaving on a signal: note it, finish the update, save, and end with a code of its own."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

# What sysexits calls a temporary failure: everything is saved, start me again.
EXIT_CODE = 75


class Preempted(SystemExit):
    """Training was told to stop, has saved itself, and goes on when it is started again."""

    def __init__(self, name: str) -> None:
        super().__init__(EXIT_CODE)
        self.signal = name

    def __str__(self) -> str:
        return f"{self.signal}; the run is saved and goes on when it is started again"


class Notice:
    """Whether somebody asked the run to stop; polled between updates and between batches of evaluation."""

    def __init__(self) -> None:
        self.name = ""

    def __bool__(self) -> bool:
        return bool(self.name)

    def leave(self) -> NoReturn:
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
        self.name = ""
        numbers = [
            getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1") if hasattr(signal, name)
        ]
        before = {number: signal.signal(number, self._note) for number in numbers}
        try:
            yield
        finally:
            unheard, self.name = self.name, ""
            for number, handler in before.items():
                # None is a handler that was not set from Python, which cannot be set from it either.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if unheard:
            # It came when nobody looked any more; those who listened before shall have it.
            os.kill(os.getpid(), signal.Signals[unheard])

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.name:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.name = signal.Signals(number).name
