"""Start a child process, forward signals to it, and return its exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import click

from flodl.core import environment
from flodl.core.errors import SetupError

from .exit_codes import describe_signal, ending_signal
from .signals import SignalForwarder


def child_environment(**variables: str) -> dict[str, str]:
    """Return the environment for a child.

    `python` is that of the active virtual environment, or this one. A child fdl does not check for updates,
    because this process does.
    """
    own, active = str(Path(sys.executable).parent), environment.active_environment()
    is_other = active and os.path.realpath(active) != os.path.realpath(sys.prefix)
    folders = [environment.search_path(), own] if is_other else [own, environment.search_path()]
    path = os.pathsep.join(filter(None, folders))
    return {**os.environ, "PATH": path, environment.NO_UPDATE_CHECK: "1", **variables}


def call(command: Sequence[str], *, cwd: Path, **variables: str) -> int:
    """Run a command and return its exit code. If a signal ended it, print the signal and return 1.

    SIGINT and SIGTERM are forwarded, so that the child can save its state, and this process waits for it.
    """
    env = child_environment(**variables)
    program = _find_program(command[0], cwd, env["PATH"])
    with SignalForwarder() as signals:
        try:
            child = subprocess.Popen([program, *command[1:]], cwd=cwd, env=env)
        except OSError as error:
            raise SetupError(f"`{command[0]}` cannot be started in {cwd}: {error.strerror}.") from None
        code = signals.wait(child)
    if name := ending_signal(code, command[0]):
        is_stopped = signals.interrupted and name == "SIGINT"
        text = "Stopped." if is_stopped else f"fdl: the command was {describe_signal(name)}"
        click.echo(text, err=True)
    return code if code >= 0 else 130 if signals.interrupted and -code == signal.SIGINT else 1


def spawn(
    command: Sequence[str], *, cwd: Path, output: IO[bytes], **variables: str
) -> subprocess.Popen[bytes]:
    """Start a command in the background, in its own session, with its output in a file.

    In its own session, it does not receive Ctrl-C from the terminal: the caller decides when it stops.
    """
    env = child_environment(**variables)
    program = _find_program(command[0], cwd, env["PATH"])
    try:
        return subprocess.Popen(
            [program, *command[1:]], cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise SetupError(f"`{command[0]}` cannot be started in {cwd}: {error.strerror}.") from None


def _find_program(program: str, cwd: Path, path: str) -> str:
    """Find a program as the child would: on the child's PATH, or relative to its folder."""
    import shutil

    if os.sep in program:
        return str(cwd / program)
    found = shutil.which(program, path=path)
    if found is None and program == "docker":
        raise SetupError(
            "`docker` was not found, but the manifest has `docker:`. Install Docker, or remove that line "
            "to run on this machine."
        )
    if found is None:
        raise SetupError(f"`{program}` was not found. Install it, or write its full path in the manifest.")
    return found
