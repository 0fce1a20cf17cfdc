"""Signals: remember the request to stop, finish the update, save, and exit with a distinct code."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

# EX_TEMPFAIL of sysexits.h: everything is saved, and the program can be started again.
EXIT_CODE = 75
# A scheduler or `timeout` signals a process group and its leader, which forwards the signal: one request.
REPEAT_S = 1.0


class Preempted(SystemExit):
    """Training was asked to stop and has saved itself; it continues when it is started again.

    If it could not save itself, `lost` says so: Python then prints it and exits with code 1.
    """

    def __init__(self, name: str, lost: str = "", *, has_begun: bool = True, has_ended: bool = False) -> None:
        super().__init__(lost or EXIT_CODE)
        self.signal, self.lost = name, lost
        saved = "the run is saved and continues when it is started again"
        if not has_begun:
            saved = "nothing was trained yet, so nothing was saved; start it again"
        if has_ended:
            saved = "the run had already ended"
        self._text = lost or f"{name}; {saved}"

    def __str__(self) -> str:
        return self._text


class StopRequest:
    """The signal that asked the run to stop, if any; polled between updates and between batches of
    evaluation."""

    def __init__(self) -> None:
        self.signal = ""
        self._received_s = 0.0
        self._previous: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return bool(self.signal)

    def exit(self, lost: str = "", *, has_begun: bool = True, has_ended: bool = False) -> NoReturn:
        """Exit with the code for "saved", or with what was lost; at a prompt, raise KeyboardInterrupt."""
        name, self.signal = self.signal, ""
        if name == "SIGINT" and hasattr(sys, "ps1"):
            raise KeyboardInterrupt(lost)
        raise Preempted(name, lost, has_begun=has_begun, has_ended=has_ended)

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Remember SIGTERM, SIGINT and SIGUSR1 inside the context; a second request ends the program."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self.signal, self._previous = "", {}
        for name in ("SIGTERM", "SIGINT", "SIGUSR1"):
            self._replace(name, self._handle)
        try:
            yield
        finally:
            unhandled, self.signal = self.signal, ""
            while self._previous:
                number, handler = self._previous.popitem()
                # None is a handler that was not set from Python and cannot be set from Python.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if unhandled:
            # It arrived after the last poll: deliver it to the previous handler.
            os.kill(os.getpid(), signal.Signals[unhandled])

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        name, now_s = signal.Signals(number).name, time.monotonic()
        if name == self.signal and now_s - self._received_s < REPEAT_S:
            return
        if self.signal:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.signal, self._received_s = name, now_s
        # The same signal may have ended the workers of a loader. Torch would raise wherever the step is, even
        # in the middle of an update. Reading from the loader raises as well.
        self._replace("SIGCHLD", signal.SIG_DFL)

    def _replace(self, name: str, handler: Any) -> None:
        """Set a handler until `listen` ends; not every system has every signal."""
        number = getattr(signal, name, None)
        if number is not None:
            self._previous.setdefault(number, signal.signal(number, handler))
