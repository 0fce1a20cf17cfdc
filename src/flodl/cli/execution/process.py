"""Starting a child process and lasting as long as it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Self

import click

from flodl.core import environment
from flodl.core.errors import SetupError

_NEVER_ON_PURPOSE = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)


def environment_for_children(**more: str) -> dict[str, str]:
    """Give the environment of a child; `python` is that of the active virtual environment, or this one.

    A child that is fdl again leaves the word about updates to this process.
    """
    own, active = str(Path(sys.executable).parent), environment.active_environment()
    elsewhere = active and os.path.realpath(active) != os.path.realpath(sys.prefix)
    folders = [environment.search_path(), own] if elsewhere else [own, environment.search_path()]
    path = os.pathsep.join(filter(None, folders))
    return {**os.environ, "PATH": path, environment.NO_UPDATE_CHECK: "1", **more}


def call(command: Sequence[str], *, cwd: Path, **variables: str) -> int:
    """Run a command to its end and give its exit code; 1 if a signal ended it, which is said.

    Ctrl-C reaches the child by itself, and it may want to save what it has: this process waits for it. A
    request to end is passed on.
    """
    child_environment = environment_for_children(**variables)
    program = _located(command[0], cwd, child_environment["PATH"])
    with _Signals() as signals:
        try:
            child = subprocess.Popen([program, *command[1:]], cwd=cwd, env=child_environment)
        except OSError as error:
            raise SetupError(f"`{command[0]}` cannot be started in {cwd}: {error.strerror}.") from None
        signals.go_to(child)
        code = child.wait()
    # A shell, or docker, says by its own code that the process that it ran was the one to die.
    told = command[0] in ("sh", "docker") and code - 128 in _NEVER_ON_PURPOSE
    if code < 0 or told:
        _say_signal(-code if code < 0 else code - 128, asked=signals.interrupted)
    return code if code >= 0 else 130 if signals.interrupted and -code == signal.SIGINT else 1


class _Signals:
    """What becomes of the signals that arrive while a child runs, from before it starts until it has ended.

    An interrupt is noted and nothing else: raised in the middle of starting the child it would leave it
    alone. A request to end is passed on, a little later if there is no child yet. Only the main thread may
    listen for signals; an interrupt that is ignored stays ignored, for the child too.
    """

    def __init__(self) -> None:
        self.interrupted = False
        self._asked_to_end = False
        self._child: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._note)
            self._before[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._pass_on)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def go_to(self, child: subprocess.Popen[bytes]) -> None:
        """Name the child that requests to end go to, with the one that came too early for it."""
        self._child = child
        if self._asked_to_end:
            child.send_signal(signal.SIGTERM)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.interrupted = True

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._asked_to_end = True
        if self._child is not None:
            self._child.send_signal(number)


def _say_signal(number: int, *, asked: bool) -> None:
    """Name the signal that ended a child; without a word it would look like any failure."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        return
    if asked and number == signal.SIGINT:
        return
    hint = " The system does that when memory runs out: `dmesg` tells." if name == "SIGKILL" else ""
    click.echo(f"fdl: the command was ended by {name} (signal {number}).{hint}", err=True)


def _located(program: str, cwd: Path, path: str) -> str:
    """Find the program as the child would: by the child's own PATH, or from its own folder."""
    import shutil

    if os.sep in program:
        return str(cwd / program)
    found = shutil.which(program, path=path)
    if found is None and program == "docker":
        raise SetupError(
            "`docker` is not found, and the manifest asks for it with `docker:`. Install Docker, or take "
            "that line out to run on this machine itself."
        )
    if found is None:
        raise SetupError(f"`{program}` is not found. Install it, or write its whole path into the manifest.")
    return found
