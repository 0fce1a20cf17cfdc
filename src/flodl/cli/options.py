"""The options that stand before or after the name of any command: how much to print, and in colour or not."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from flodl.core import log

F = TypeVar("F", bound=Callable[..., Any])


def talk_options(function: F) -> F:
    """Add `-v`, `-q` and `--no-color` to a command.

    What they say holds for this process and, through the environment, for those that it starts.
    """
    for names, settings in reversed(_OPTIONS):
        function = click.option(*names, expose_value=False, **settings)(function)
    return function


def _talk(_ctx: click.Context, _option: click.Parameter, count: int) -> None:
    if count:
        _set_verbosity(min(log.Verbosity.NORMAL + count, log.Verbosity.TRACE))


def _be_quiet(_ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        _set_verbosity(log.Verbosity.QUIET)


def _set_verbosity(level: int) -> None:
    log.set_verbosity(level)
    os.environ["FLODL_VERBOSITY"] = str(int(level))


def _refuse_colour(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        ctx.color = False
        os.environ["NO_COLOR"] = "1"


_OPTIONS: list[tuple[list[str], dict[str, Any]]] = [
    (
        ["-v", "--verbose"],
        {"count": True, "callback": _talk, "help": "Print more; -vv to debug, -vvv for every small thing."},
    ),
    (["-q", "--quiet"], {"is_flag": True, "callback": _be_quiet, "help": "Print errors only."}),
    (
        ["--no-color"],
        {"is_flag": True, "callback": _refuse_colour, "help": "Print plain text, as with NO_COLOR=1."},
    ),
]
