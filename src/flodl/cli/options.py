"""The options of every command: verbosity and color."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from flodl.core import log
from flodl.core.errors import SetupError
from flodl.core.paths import did_you_mean, nearest, suggestion

F = TypeVar("F", bound=Callable[..., Any])
_MAX_SUMMARY = 200
_COLOR_FLAG = "flodl.cli.color"
NO_APPEND_HELP = "Omit what the manifest appends to a script."
_NO_APPEND = "flodl.cli.no_append"
_MANY_V = re.compile(r"-v+\Z")


class HomePath(click.Path):
    """A path, with `~` for the user's home folder: shells do not expand `--out=~/runs`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(path_type=Path, **settings)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value).startswith("~"):
            from flodl.core.files import expand_user

            value = expand_user(value)
        return super().convert(value, param, ctx)


class GivenPath(HomePath):
    """A path; an empty one, as from a variable that is not set, is an error, not the working directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty. Pass a path; '.' is the working directory.", param, ctx)
        return super().convert(value, param, ctx)


class SuggestingChoice(click.Choice[str]):
    """One of several names; the error for an unknown one suggests the nearest."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        message = super().get_invalid_choice_message(value, ctx)
        return f"{message} {did_you_mean(nearest(str(value), self.choices))}".rstrip()


class UnknownCommand(click.UsageError):
    """The error for an unknown command."""

    exit_code = 1


class CommandGroup(click.Group):
    """A group that suggests the nearest command for an unknown one, and lists full summaries."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            if found := self.get_command(ctx, name):
                rows.append((name, found.get_short_help_str(limit=_MAX_SUMMARY)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing and args and self.get_command(ctx, args[0]) is None:
            hint = suggestion(args[0], self.list_commands(ctx), known_as="commands")
            raise UnknownCommand(f"`{ctx.command_path}` has no command {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)


def output_options(function: F) -> F:
    """Add `-v`, `-q`, `--ansi` and `--no-ansi` to a command.

    They apply to this process and, through the environment, to its child processes.
    """
    for names, settings in reversed(_OPTIONS):
        function = click.option(*names, expose_value=False, **settings)(function)
    return function


def no_append_option(function: F) -> F:
    """Add `--no-append` to a command that precedes the name of a project command."""

    def remember(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
        if wanted:
            ctx.meta[_NO_APPEND] = True

    return click.option(
        "--no-append", is_flag=True, expose_value=False, callback=remember, help=NO_APPEND_HELP
    )(function)


def take_no_append(ctx: click.Context, words: tuple[str, ...]) -> tuple[bool, tuple[str, ...]]:
    """Return whether `--no-append` was given before or among the words, and the words without it."""
    end = words.index("--") if "--" in words else len(words)
    own = tuple(word for word in words[:end] if word != "--no-append")
    return len(own) < end or _NO_APPEND in ctx.meta, own + words[end:]


def take_output_options(ctx: click.Context, words: tuple[str, ...]) -> tuple[str, ...]:
    """Apply these options and return the other words; words after `--` are not fdl's."""
    rest: list[str] = []
    for position, word in enumerate(words):
        if word == "--":
            rest += words[position:]
            break
        if _MANY_V.match(word) or word == "--verbose":
            steps = 1 if word == "--verbose" else len(word) - 1
            _set_verbosity(min(log.Verbosity.NORMAL + steps, log.Verbosity.TRACE))
        elif word in ("-q", "--quiet"):
            _set_verbosity(log.Verbosity.QUIET)
        elif word in ("--ansi", "--no-ansi", "--no-color"):
            _set_color(ctx, wanted=word == "--ansi")
        else:
            rest.append(word)
    return tuple(rest)


def _raise_verbosity(_ctx: click.Context, _option: click.Parameter, count: int) -> None:
    if count:
        _set_verbosity(min(log.Verbosity.NORMAL + count, log.Verbosity.TRACE))


def _set_quiet(_ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        _set_verbosity(log.Verbosity.QUIET)


def _set_verbosity(level: int) -> None:
    log.set_verbosity(level)
    os.environ["FLODL_VERBOSITY"] = str(int(level))


def _enable_color(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        _set_color(ctx, wanted=True)


def _disable_color(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        _set_color(ctx, wanted=False)


def _set_color(ctx: click.Context, *, wanted: bool) -> None:
    if ctx.meta.setdefault(_COLOR_FLAG, wanted) != wanted:
        raise SetupError("--ansi and --no-ansi are mutually exclusive. Pass one of them.")
    ctx.color = wanted
    os.environ["FLODL_COLOR"] = "always" if wanted else "never"
    if not wanted:
        os.environ["NO_COLOR"] = "1"  # for child processes that do not use flodl


_OPTIONS: list[tuple[list[str], dict[str, Any]]] = [
    (
        ["-v", "--verbose"],
        {
            "count": True,
            "callback": _raise_verbosity,
            "help": "Print more; -vv for debugging, -vvv for every detail.",
        },
    ),
    (["-q", "--quiet"], {"is_flag": True, "callback": _set_quiet, "help": "Print errors only."}),
    (
        ["--ansi"],
        {"is_flag": True, "callback": _enable_color, "help": "Print in color, even to a file."},
    ),
    (
        ["--no-ansi", "--no-color"],
        {"is_flag": True, "callback": _disable_color, "help": "Print plain text, as with NO_COLOR=1."},
    ),
]


def check_folder(option: str, file: Path) -> None:
    """Raise before anything is done if the file of an option cannot be written."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise SetupError(
            f"{option} {file}: the folder {folder} does not exist. Create it, or choose a different file."
        )
    if not os.access(folder, os.W_OK):
        raise SetupError(f"{option} {file}: {folder} is not writable. Choose a different file.")
