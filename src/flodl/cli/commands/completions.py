"""`fdl completions`: the script that lets a shell ask fdl what may come next."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from flodl.cli.options import talk_options

SHELLS = {
    "bash": 'eval "$(fdl completions bash)"    # in ~/.bashrc',
    "zsh": 'eval "$(fdl completions zsh)"     # in ~/.zshrc, after compinit',
    "fish": "fdl completions fish | source     # in ~/.config/fish/config.fish",
}


@click.command("completions", epilog="\b\n" + "\n".join(SHELLS.values()))
@click.argument("shell", type=click.Choice(list(SHELLS)), default="bash")
@talk_options
def command(shell: str) -> None:
    """Print the completion script for bash, zsh or fish.

    The script asks fdl at every TAB, so it follows the project that you are in, to any depth: commands,
    presets, options, choices, files and environments.
    """
    from flodl.cli.program import program

    complete = get_completion_class(shell)
    assert complete is not None
    # The base class: that of bash would start a bash to ask for its version.
    click.echo(ShellComplete.source(complete(program, {}, "fdl", "_FDL_COMPLETE")), nl=False)
