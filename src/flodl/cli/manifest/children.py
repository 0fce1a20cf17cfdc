"""Starting a child process and lasting as long as it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from flodl.core import environment
from flodl.core.errors import SetupError

_NEVER_ON_PURPOSE = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)


def environment_for_children(**more: str) -> dict[str, str]:
    """Give the environment of a child; `python` is that of the active virtual environment, or this one."""
    own, active = str(Path(sys.executable).parent), environment.active_environment()
    elsewhere = active and Path(active).resolve() != Path(sys.prefix).resolve()
    folders = [environment.search_path(), own] if elsewhere else [own, environment.search_path()]
    return {**os.environ, "PATH": os.pathsep.join(filter(None, folders)), **more}


def call(command: Sequence[str], *, cwd: Path, **variables: str) -> int:
    """Run a command to its end and give its exit code; 1 if a signal ended it, which is said.

    Ctrl-C reaches the child by itself, and it may want to save what it has: this process waits for it. A
    request to end is passed on.
    """
    child_environment = environment_for_children(**variables)
    program = _located(command[0], cwd, child_environment["PATH"])
    with _passing_on(signal.SIGTERM) as passed_to:
        try:
            child = subprocess.Popen([program, *command[1:]], cwd=cwd, env=child_environment)
        except OSError as error:
            raise SetupError(f"`{command[0]}` cannot be started in {cwd}: {error.strerror}.") from None
        passed_to.append(child)
        interrupted = False
        while True:
            try:
                code = child.wait()
            except KeyboardInterrupt:
                interrupted = True
                continue
            # A shell, or docker, says by its own code that the process that it ran was the one to die.
            told = command[0] in ("sh", "docker") and code - 128 in _NEVER_ON_PURPOSE
            if code < 0 or told:
                _say_signal(-code if code < 0 else code - 128, asked=interrupted)
            return code if code >= 0 else 130 if interrupted and -code == signal.SIGINT else 1


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


@contextmanager
def _passing_on(number: signal.Signals) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Pass a signal on to the processes in the list; only the main thread may listen for one."""
    children: list[subprocess.Popen[bytes]] = []
    if threading.current_thread() is not threading.main_thread():
        yield children
        return

    def pass_on(arrived: int, _frame: FrameType | None) -> None:
        for child in children:
            child.send_signal(arrived)

    before = signal.signal(number, pass_on)
    try:
        yield children
    finally:
        signal.signal(number, before)


def _located(program: str, cwd: Path, path: str) -> str:
    """Find the program as the child would: by the child's own PATH, or from its own folder."""
    import shutil

    if os.sep in program:
        return str(cwd / program)
    found = shutil.which(program, path=path)
    if found is None:
        raise SetupError(f"`{program}` is not found. Install it, or write its whole path into the manifest.")
    return found
