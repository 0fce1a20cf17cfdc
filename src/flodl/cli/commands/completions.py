"""`fdl completions`: print the completion script of a shell."""

from __future__ import annotations

import click

from flodl.cli.options import SuggestingChoice, output_options

SHELLS = {
    "bash": 'eval "$(fdl completions bash)"    # in ~/.bashrc',
    "zsh": 'eval "$(fdl completions zsh)"     # in ~/.zshrc, after compinit',
    "fish": "fdl completions fish | source     # in ~/.config/fish/config.fish",
}


@click.command("completions", epilog="\b\n" + "\n".join(SHELLS.values()))
@click.argument("shell", metavar="[SHELL]", type=SuggestingChoice(list(SHELLS)), default="bash")
@output_options
def command(shell: str) -> None:
    """Print the completion script for bash, zsh or fish.

    The script calls fdl at every TAB, so it completes the commands, presets, options, choices, files and
    environments of the current project, at any depth. What it inserts is quoted for the shell.

    A TAB after the name of a project command may execute code of the project: its entry with --fdl-schema,
    and the `completer:` of an option.
    """
    from flodl.cli.program import program
    from flodl.cli.shells import script_for

    click.echo(script_for(shell, program, "fdl", "_FDL_COMPLETE"), nl=False)
