"""The options that stand before or after the name of any command: how much to print, and in colour or not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from flodl.core import log
from flodl.core.errors import SetupError
from flodl.core.paths import suggestion

F = TypeVar("F", bound=Callable[..., Any])
_LONGEST_SUMMARY = 200
_COLOUR_FLAG = "flodl.cli.colour"
NO_APPEND_HELP = "Leave out what the manifest appends to a script."
_NO_APPEND = "flodl.cli.no_append"
_MANY_V = re.compile(r"-v+\Z")


class UnknownCommand(click.UsageError):
    """A name that no command has."""

    exit_code = 1


class CommandGroup(click.Group):
    """A group that answers an unknown name with the nearest one, and lists its commands in sentences."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            if found := self.get_command(ctx, name):
                rows.append((name, found.get_short_help_str(limit=_LONGEST_SUMMARY)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing and args and self.get_command(ctx, args[0]) is None:
            hint = suggestion(args[0], self.list_commands(ctx), known_as="commands")
            raise UnknownCommand(f"`{ctx.command_path}` has no command {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)


def talk_options(function: F) -> F:
    """Add `-v`, `-q`, `--ansi` and `--no-ansi` to a command.

    What they say holds for this process and, through the environment, for those that it starts.
    """
    for names, settings in reversed(_OPTIONS):
        function = click.option(*names, expose_value=False, **settings)(function)
    return function


def no_append_option(function: F) -> F:
    """Add `--no-append` to a command in front of the name of one of the project's."""

    def note(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
        if wanted:
            ctx.meta[_NO_APPEND] = True

    return click.option("--no-append", is_flag=True, expose_value=False, callback=note, help=NO_APPEND_HELP)(
        function
    )


def take_no_append(ctx: click.Context, words: tuple[str, ...]) -> tuple[bool, tuple[str, ...]]:
    """Say whether `--no-append` stands before or among the words, and give them without it."""
    end = words.index("--") if "--" in words else len(words)
    own = tuple(word for word in words[:end] if word != "--no-append")
    return len(own) < end or _NO_APPEND in ctx.meta, own + words[end:]


def take_talk(ctx: click.Context, words: tuple[str, ...]) -> tuple[str, ...]:
    """Take these options out of words that are passed on to something else; what follows `--` is not ours."""
    left: list[str] = []
    for position, word in enumerate(words):
        if word == "--":
            left += words[position:]
            break
        if _MANY_V.match(word) or word == "--verbose":
            louder = 1 if word == "--verbose" else len(word) - 1
            _set_verbosity(min(log.Verbosity.NORMAL + louder, log.Verbosity.TRACE))
        elif word in ("-q", "--quiet"):
            _set_verbosity(log.Verbosity.QUIET)
        elif word in ("--ansi", "--no-ansi", "--no-color"):
            _set_colour(ctx, wanted=word == "--ansi")
        else:
            left.append(word)
    return tuple(left)


def _talk(_ctx: click.Context, _option: click.Parameter, count: int) -> None:
    if count:
        _set_verbosity(min(log.Verbosity.NORMAL + count, log.Verbosity.TRACE))


def _be_quiet(_ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        _set_verbosity(log.Verbosity.QUIET)


def _set_verbosity(level: int) -> None:
    log.set_verbosity(level)
    os.environ["FLODL_VERBOSITY"] = str(int(level))


def _demand_colour(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        _set_colour(ctx, wanted=True)


def _refuse_colour(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        _set_colour(ctx, wanted=False)


def _set_colour(ctx: click.Context, *, wanted: bool) -> None:
    if ctx.meta.setdefault(_COLOUR_FLAG, wanted) != wanted:
        raise SetupError("--ansi and --no-ansi are mutually exclusive. Give one of them.")
    ctx.color = wanted
    os.environ["FLODL_COLOR"] = "always" if wanted else "never"
    if not wanted:
        os.environ["NO_COLOR"] = "1"  # for children that know nothing of flodl


_OPTIONS: list[tuple[list[str], dict[str, Any]]] = [
    (
        ["-v", "--verbose"],
        {"count": True, "callback": _talk, "help": "Print more; -vv to debug, -vvv for every small thing."},
    ),
    (["-q", "--quiet"], {"is_flag": True, "callback": _be_quiet, "help": "Print errors only."}),
    (
        ["--ansi"],
        {"is_flag": True, "callback": _demand_colour, "help": "Print in colour, also into a file."},
    ),
    (
        ["--no-ansi", "--no-color"],
        {"is_flag": True, "callback": _refuse_colour, "help": "Print plain text, as with NO_COLOR=1."},
    ),
]
