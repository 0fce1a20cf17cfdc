"""Forward SIGINT and SIGTERM to a child process, unless the child has received them already."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, Self

from .group_signal import GroupSignals

REPEAT_S = 1.0  # `timeout` and job schedulers send a signal to a process and to its group
_FROM_TERMINAL = 0x80  # SI_KERNEL, the si_code of a signal that Ctrl-C sends
_POLL_S = 0.2


class SignalForwarder:
    """Handles signals while a child runs, from before it starts until it ends.

    A terminal, and some programs that start fdl, send a signal to the whole process group. The child receives
    it, too, so it is not forwarded. A signal for this process alone is forwarded; one that arrives while the
    child is starting is delivered as soon as there is a child.
    Only the main thread can install handlers. If SIGINT is ignored, it stays ignored, also in the child.
    """

    def __init__(self) -> None:
        self.interrupted = False
        self._child: subprocess.Popen[bytes] | None = None
        self._group = GroupSignals()
        self._early: list[int] = []  # arrived before there was a child
        self._last: dict[int, float] = {}
        self._previous_handlers: dict[int, Any] = {}
        self._stopped: dict[int, set[int]] = {}  # the processes that received each signal

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous_handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def wait(self, child: subprocess.Popen[bytes]) -> int:
        """Wait for the child and return its exit code; forward signals meanwhile."""
        self._child = child
        for number in self._early:
            self._forward(number)
        with GroupSignals() as self._group:
            return self._wait(child)

    def _wait(self, child: subprocess.Popen[bytes]) -> int:
        if not self._previous_handlers or not hasattr(signal, "sigtimedwait"):
            return child.wait()
        # Waiting for the signals, instead of handling them, tells who sent them.
        awaited = {*self._previous_handlers, signal.SIGCHLD}
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
        try:
            while (code := child.poll()) is None:
                received = signal.sigtimedwait(awaited, _POLL_S if self._stopped else 60.0)
                if received is None or received.si_signo == signal.SIGCHLD:
                    for number in self._stopped:
                        self._send(number)  # to programs that a script has started since
                else:
                    self._receive(received.si_signo, forward=received.si_code != _FROM_TERMINAL)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
        return code

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self._receive(number, forward=number != signal.SIGINT or not _in_foreground())

    def _receive(self, number: int, *, forward: bool) -> None:
        self.interrupted = self.interrupted or number == signal.SIGINT
        if forward and self._child is None:
            self._early.append(number)
        elif forward and not self._group.received():
            self._forward(number)

    def _forward(self, number: int) -> None:
        now = time.monotonic()
        if now - self._last.get(number, -REPEAT_S) >= REPEAT_S:
            self._last[number] = now
            self._stopped[number] = set()
            self._send(number)

    def _send(self, number: int) -> None:
        """Send a signal to the child; if that is a shell, also to the programs that it runs."""
        child, done = self._child, self._stopped[number]
        assert child is not None
        if child.pid not in done:
            child.send_signal(number)
        done.add(child.pid)
        for pid in _programs_of_shell(child):
            if pid not in done:
                done.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)


def _programs_of_shell(child: subprocess.Popen[bytes]) -> list[int]:
    """Return the processes that a shell has started; other programs stop theirs themselves."""
    words = child.args if isinstance(child.args, list) else []
    if len(words) < 2 or Path(os.fsdecode(words[0])).name != "sh" or words[1] != "-c":
        return []
    try:
        text = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text()
    except OSError:  # it has ended, or this system has no such file
        return []
    return [int(pid) for pid in text.split()]


def _in_foreground() -> bool:
    """Return whether Ctrl-C in the terminal reaches the child without this process."""
    try:
        return os.tcgetpgrp(sys.__stdin__.fileno()) == os.getpgrp()  # type: ignore[union-attr]
    except (OSError, ValueError, AttributeError):
        return False
