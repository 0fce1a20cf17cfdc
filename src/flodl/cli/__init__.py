"""The `fdl` program, and typed arguments for any script: `flodl.cli.Args`."""

from __future__ import annotations

# The first import: it decides what Ctrl-C does during those that follow.
from .ctrl_c import EXIT_CODE, is_imported_by_program, stop_during_imports, stop_with_one_line

if is_imported_by_program():
    stop_with_one_line()

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import click

from flodl.core import log
from flodl.core.environment import color_setting
from flodl.core.errors import FlodlError

from .commands import SUMMARIES
from .program import program

if TYPE_CHECKING:
    from .args import Args, argument, option
else:

    def __getattr__(name):
        # `fdl` itself does not use Args, so it should not pay for the import.
        if name in ("Args", "argument", "option"):
            return getattr(import_module(".args", __name__), name)
        raise AttributeError(f"module 'flodl.cli' has no attribute {name!r}")


_WRITE_FAILED = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)

__all__ = ["Args", "argument", "main", "option"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `fdl` with these arguments, or those of the process, and return its exit code.

    0 is success, 1 an error that flodl explains, 2 invalid options, 130 Ctrl-C. A project command returns the
    exit code of the program it started.

    >>> main(["--version"])
    flodl ...
    0
    """
    try:
        code = _run(arguments)
        if sys.stdout is not None:  # None if it was closed before the start
            sys.stdout.flush()
    except OSError as error:
        return _output_failed(error)
    _mention_updates()
    return code


def _mention_updates() -> None:
    """Print a notice about a newer flodl on a terminal; ignore failures, because the command has finished."""
    with contextlib.suppress(Exception):
        if sys.stderr.isatty():
            from .updates.notice import mention_updates

            mention_updates()


def _run(arguments: Sequence[str] | None) -> int:
    try:
        with stop_during_imports():
            result = program.main(arguments, prog_name="fdl", standalone_mode=False)
    except click.UsageError as error:
        name = _command_with_help(error, sys.argv[1:] if arguments is None else arguments)
        _print_error(f"{error.format_message()}\nTry '{name} --help'.")
        return error.exit_code
    except click.ClickException as error:
        _print_error(error.format_message())
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Stopped.", err=True)
        return EXIT_CODE
    except FlodlError as error:
        _show_traceback()
        _print_error(str(error))
        return 1
    return result if isinstance(result, int) else 0


def _command_with_help(error: click.UsageError, arguments: Sequence[str]) -> str:
    """Return the command whose help explains the error; it may be a project command."""
    if error.ctx is None:  # click's parser sets no context when an option lacks its value
        return " ".join(["fdl", *_builtin_command(arguments)])
    path = error.ctx.command_path
    return path if path.startswith("fdl") else f"fdl {path}"


def _builtin_command(arguments: Sequence[str]) -> list[str]:
    """Return the words that name a built-in command at the start of a command line, such as `hf export`."""
    names: list[str] = []
    context = click.Context(program, info_name="fdl")
    group: click.Command = program
    for word in arguments:
        known = SUMMARIES if group is program else getattr(group, "commands", {})
        if word.startswith("-") and not names:
            continue
        if word not in known or not isinstance(group, click.Group):
            break
        names.append(word)
        group = group.get_command(context, word) or group
    return names


def _output_failed(error: OSError) -> int:
    """Print a failed system call; a closed pipe, as with `| head`, is not an error."""
    if error.errno == errno.EPIPE or error.errno in _WRITE_FAILED:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            # Flushing the rest of the buffer would fail again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        return 1
    _show_traceback()
    with contextlib.suppress(OSError):
        path = f"{error.filename}: " if error.filename else ""
        _print_error(f"{path}{error.strerror or error}. -vv shows the traceback.")
    return 1


def _show_traceback() -> None:
    if log.enabled(log.Verbosity.DEBUG):
        import traceback

        traceback.print_exc()


def _print_error(message: str) -> None:
    label = click.style("error:", fg="red")
    click.echo(f"{label} {message}", err=True, color=color_setting())
