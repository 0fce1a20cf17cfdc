"""The `fdl` program, and typed arguments for any script: `flodl.cli.Args`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import click

from flodl.core import log
from flodl.core.environment import colour_wanted
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
        result = program.main(arguments, prog_name="fdl", standalone_mode=False)
    except click.UsageError as error:
        name = error.ctx.command_path if error.ctx else "fdl"
        _complain(f"{error.format_message()}\nTry '{name} --help'.")
        return error.exit_code
    except click.ClickException as error:
        _complain(error.format_message())
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Stopped.", err=True)
        return 130
    except FlodlError as error:
        if log.enabled(log.Verbosity.DEBUG):
            import traceback

            traceback.print_exc()
        _complain(str(error))
        return 1
    return result if isinstance(result, int) else 0


def _complain(message: str) -> None:
    word = click.style("error:", fg="red")
    click.echo(f"{word} {message}", err=True, color=colour_wanted())
