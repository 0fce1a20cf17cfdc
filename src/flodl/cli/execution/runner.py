"""Run a plan as a child process, with the table of resolved values in its environment."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import IO

import click

from flodl.core import log
from flodl.core.environment import RESOLVED_CONFIG
from flodl.core.errors import ManifestError, SetupError
from flodl.core.files import write_atomic

from .missing_module import missing_module
from .plan import Plan
from .process import call, spawn
from .shell_line import stoppable

MAX_VARIABLE_LENGTH = 100_000  # Linux allows at most 128 KiB per variable


def run_plan(plan: Plan) -> int:
    """Run a plan and return the exit code of the process."""
    if plan.echo and log.enabled(log.Verbosity.NORMAL):
        click.echo(plan.echo, err=True)
    text = json.dumps(plan.table)
    file = plan.folder / ".fdl" / "resolved.json"
    if plan.in_container:
        # A container can read only files of the project.
        _write(file, text)
        return call(plan.command, cwd=plan.folder)
    if len(text) > MAX_VARIABLE_LENGTH:
        _write(file, text)
        text = str(file)
    try:
        code = call(stoppable(plan.command), cwd=plan.folder, **{RESOLVED_CONFIG: text})
    except SetupError as error:
        origin = next(iter(plan.table.values()))["origin"]  # of the entry or the script
        raise SetupError(f"{origin}: {error}") from None
    if (
        code == 1
        and plan.command[:2] == ["sh", "-c"]
        and (hint := missing_module(plan.command[2], plan.folder))
    ):
        click.echo(f"fdl: {hint}", err=True)
    return code


def start_plan(plan: Plan, output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a plan in the background, with its output in a file."""
    text = json.dumps(plan.table)
    if plan.in_container:
        _write(plan.folder / ".fdl" / "resolved.json", text)
        return spawn(plan.command, cwd=plan.folder, output=output)
    return spawn(stoppable(plan.command), cwd=plan.folder, output=output, **{RESOLVED_CONFIG: text})


def _write(file: Path, text: str) -> None:
    if file.exists() and not file.is_file():  # writing to a pipe would wait for a reader
        raise ManifestError(f"{file} cannot be written: it is not a regular file. Remove it.")
    try:
        write_atomic(file, text)
    except OSError as error:
        raise ManifestError(f"{file} cannot be written: {error.strerror}.") from None
