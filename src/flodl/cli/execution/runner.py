"""Run a plan as a child process, with the table of resolved values in its environment."""

from __future__ import annotations

import json
from pathlib import Path

import click

from flodl.core import log
from flodl.core.environment import RESOLVED_CONFIG
from flodl.core.errors import ManifestError, SetupError
from flodl.core.files import write_atomic

from .plan import Plan
from .process import call

LONGEST_VARIABLE = 100_000  # Linux refuses a process whose variable is longer than 128 KiB


def run_plan(plan: Plan) -> int:
    """Start what was planned, and give its exit code."""
    if plan.echo and log.enabled(log.Verbosity.NORMAL):
        click.echo(plan.echo, err=True)
    text = json.dumps(plan.table)
    file = plan.folder / ".fdl" / "resolved.json"
    if plan.in_container:
        # Only what lies in the project can be read in there.
        _keep(file, text)
        return call(plan.command, cwd=plan.folder)
    if len(text) > LONGEST_VARIABLE:
        _keep(file, text)
        text = str(file)
    try:
        return call(plan.command, cwd=plan.folder, **{RESOLVED_CONFIG: text})
    except SetupError as error:
        target = next(iter(plan.table.values()))["origin"]  # of the entry, or of the script
        raise SetupError(f"{target}: {error}") from None


def _keep(file: Path, text: str) -> None:
    try:
        write_atomic(file, text)
    except OSError as error:
        raise ManifestError(f"{file} cannot be written: {error.strerror}.") from None
