"""Print lines for people, and ask for confirmation on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from flodl.core import log
from flodl.core.errors import SetupError


def line_printer(*, to_stderr: bool = False) -> Callable[[str], None]:
    """Return a function that prints a line unless `--quiet` is on; with JSON, use standard error."""

    def echo(line: str) -> None:
        if line and log.enabled(log.Verbosity.NORMAL):
            click.echo(line, err=to_stderr)

    return echo


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal; without one, require `--yes`."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise SetupError(f"{question} There is no terminal for an answer, so nothing was done. Pass --yes.")
    click.confirm(question, default=True, abort=True, err=True)
