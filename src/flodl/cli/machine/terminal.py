"""Talking to whoever started the command: lines for people, and questions where somebody can answer."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from flodl.core import log
from flodl.core.errors import SetupError


def voice(*, aside: bool = False) -> Callable[[str], None]:
    """Give a way to print lines for people; `aside` puts them on standard error, beside JSON."""

    def say(line: str) -> None:
        if line and log.enabled(log.Verbosity.NORMAL):
            click.echo(line, err=aside)

    return say


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal; elsewhere only `--yes` is an answer."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise SetupError(f"{question} There is no terminal to ask on, so nothing was done. Add --yes.")
    click.confirm(question, default=True, abort=True, err=True)
