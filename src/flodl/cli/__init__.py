"""The `fdl` program, and typed arguments for any script: `flodl.cli.Args`."""

from __future__ import annotations

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

from .program import program

if TYPE_CHECKING:
    from .args import Args, argument, option
else:

    def __getattr__(name):
        # `fdl` itself reads no dataclass: a start of it should not pay for what does.
        if name in ("Args", "argument", "option"):
            return getattr(import_module(".args", __name__), name)
        raise AttributeError(f"module 'flodl.cli' has no attribute {name!r}")


_NOWHERE_TO_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)

__all__ = ["Args", "argument", "main", "option"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `fdl` with these arguments, or those of the process, and give its exit code.

    0 is success, 1 an error that flodl explains, 2 options that cannot be understood, 130 Ctrl-C; a command
    of a project gives the code of what it started.

    >>> main(["--version"])
    flodl ...
    0
    """
    try:
        code = _run(arguments)
        if sys.stdout is not None:  # it is None where it was closed before we began
            sys.stdout.flush()
    except OSError as error:
        return _output_failed(error)
    _mention_updates()
    return code


def _mention_updates() -> None:
    """Tell a person at a terminal of a newer flodl; whatever goes wrong here, the command did its work."""
    with contextlib.suppress(Exception):
        if sys.stderr.isatty():
            from .updates.notice import mention_updates

            mention_updates()


def _run(arguments: Sequence[str] | None) -> int:
    try:
        result = program.main(arguments, prog_name="fdl", standalone_mode=False)
    except click.UsageError as error:
        name = _help_for(error)
        _complain(f"{error.format_message()}\nTry '{name} --help'.")
        return error.exit_code
    except click.ClickException as error:
        _complain(error.format_message())
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Stopped.", err=True)
        return 130
    except FlodlError as error:
        _show_traceback()
        _complain(str(error))
        return 1
    return result if isinstance(result, int) else 0


def _help_for(error: click.UsageError) -> str:
    """Name the command whose help explains more: a title may be that of a command of the project."""
    if error.ctx is None:
        return "fdl"
    path = error.ctx.command_path
    return path if path.startswith("fdl") else f"fdl {path}"


def _output_failed(error: OSError) -> int:
    """Say what the system refused; a reader that has gone, as with `| head`, is nobody's mistake."""
    if error.errno == errno.EPIPE or error.errno in _NOWHERE_TO_WRITE:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            # What is still in the buffer would fail once more when the interpreter ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        return 1
    _show_traceback()
    with contextlib.suppress(OSError):
        place = f"{error.filename}: " if error.filename else ""
        _complain(f"{place}{error.strerror or error}. -vv shows where.")
    return 1


def _show_traceback() -> None:
    if log.enabled(log.Verbosity.DEBUG):
        import traceback

        traceback.print_exc()


def _complain(message: str) -> None:
    word = click.style("error:", fg="red")
    click.echo(f"{word} {message}", err=True, color=color_setting())
