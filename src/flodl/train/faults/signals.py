"""Leaving on a signal: note it, finish the update, save, and end with a code of its own."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

# What sysexits calls a temporary failure: everything is saved, start me again.
EXIT_CODE = 75


class Preempted(SystemExit):
    """Training was told to stop, has saved itself, and goes on when it is started again.

    Where it could not save itself, `lost` says so: Python then prints it and ends with exit code 1.
    """

    def __init__(self, name: str, lost: str = "", *, is_begun: bool = True) -> None:
        super().__init__(lost or EXIT_CODE)
        self.signal, self.lost = name, lost
        saved = "the run is saved and goes on when it is started again"
        if not is_begun:
            saved = "nothing was trained yet, so nothing was saved; start it again"
        self._text = lost or f"{name}; {saved}"

    def __str__(self) -> str:
        return self._text


class Notice:
    """Whether somebody asked the run to stop; polled between updates and between batches of evaluation."""

    def __init__(self) -> None:
        self.name = ""
        self._before: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return bool(self.name)

    def leave(self, lost: str = "", *, is_begun: bool = True) -> NoReturn:
        """End the program with the code that says "saved", or with what is lost; a prompt is given back."""
        name, self.name = self.name, ""
        if name == "SIGINT" and hasattr(sys, "ps1"):
            raise KeyboardInterrupt(lost)
        raise Preempted(name, lost, is_begun=is_begun)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note SIGTERM, SIGINT and SIGUSR1 while this lasts; the second one ends the program at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self.name, self._before = "", {}
        for name in ("SIGTERM", "SIGINT", "SIGUSR1"):
            self._replace(name, self._note)
        try:
            yield
        finally:
            unheard, self.name = self.name, ""
            while self._before:
                number, handler = self._before.popitem()
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
        # The same signal may have ended the workers of a loader, which torch would raise wherever the step
        # stands, in the middle of an update, too. Whoever reads from the loader hears of it.
        self._replace("SIGCHLD", signal.SIG_DFL)

    def _replace(self, name: str, handler: Any) -> None:
        """Set a handler for as long as this listens; not every system has every signal."""
        number = getattr(signal, name, None)
        if number is not None:
            self._before.setdefault(number, signal.signal(number, handler))
