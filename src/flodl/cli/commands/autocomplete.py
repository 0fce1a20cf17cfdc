"""`fdl autocomplete`: load completion whenever a shell starts."""

from __future__ import annotations

import json

import click

from flodl.cli.machine.terminal import line_printer
from flodl.cli.options import output_options


@click.command("autocomplete")
@click.option(
    "--shell", type=click.Choice(["bash", "zsh", "fish"]), help="The shell; default: that of SHELL."
)
@click.option("--uninstall", is_flag=True, help="Remove the lines again.")
@click.option("--print", "printed", is_flag=True, help="Print the lines without changing a file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@output_options
def command(shell: str | None, uninstall: bool, printed: bool, as_json: bool) -> None:
    """Add completion to the startup file of your shell: ~/.bashrc, ~/.zshrc or config.fish of fish.

    The lines stand between two markers, so that they can be updated and removed; everything else in the file
    stays as it is. `fdl completions` prints the script that they load.
    """
    from flodl.cli.shells import startup

    if uninstall and printed:
        raise click.UsageError("--uninstall and --print are mutually exclusive.")
    shell = shell or startup.current_shell()
    path = startup.startup_file(shell)
    if printed:
        click.echo(startup.block(shell))
        return
    edit = startup.removing(path) if uninstall else startup.adding(shell, path)
    edit.write()
    if as_json:
        click.echo(json.dumps({"shell": shell, "path": str(path), "changed": edit.is_changed}))
        return
    echo = line_printer()
    if edit.own_line:
        echo(f"{path}:{edit.own_line} loads completion already.")
    elif uninstall:
        echo(
            f"Removed completion from {path}."
            if edit.is_changed
            else f"{path} has no lines of fdl to remove."
        )
    elif not edit.is_changed:
        echo(f"{path} has completion already.")
    else:
        echo(f"Added completion to {path}. Start a new {shell} to use it.")
