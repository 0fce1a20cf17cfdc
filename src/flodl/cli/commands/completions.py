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

# In place of click's own: that of bash forgets words where files may stand too, and that of fish cuts a
# description at its first comma.
_SCRIPTS = {
    "bash": """\
%(complete_func)s() {
    local IFS=$'\\n' response line kind value files=
    response=$(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD %(complete_var)s=bash_complete $1)
    for line in $response; do
        kind=${line%%%%,*} value=${line#*,}
        case $kind in
            plain) COMPREPLY+=("$value") ;;
            dir) files=-d ;;
            file) files=-f ;;
        esac
    done
    if [[ $files && ${#COMPREPLY[@]} -gt 0 ]]; then
        compopt -o filenames
        COMPREPLY+=($(compgen $files -- "${COMP_WORDS[COMP_CWORD]}"))
    elif [[ $files == -d ]]; then
        compopt -o dirnames
    elif [[ $files ]]; then
        compopt -o default
    fi
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
""",
    "fish": """\
function %(complete_func)s;
    set -lx COMP_WORDS (commandline -cp);
    set -lx COMP_CWORD (commandline -t);
    set -l response (env %(complete_var)s=fish_complete %(prog_name)s);
    for completion in $response;
        set -l metadata (string split -m 1 "," $completion);
        switch $metadata[1];
            case dir;
                __fish_complete_directories $metadata[2];
            case file;
                __fish_complete_path $metadata[2];
            case plain;
                echo $metadata[2];
        end;
    end;
end;

complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)";
""",
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
    asking = complete(program, {}, "fdl", "_FDL_COMPLETE")
    asking.source_template = _SCRIPTS.get(shell, complete.source_template)  # type: ignore[misc]
    # The base class: that of bash would start a bash to ask for its version.
    click.echo(ShellComplete.source(asking), nl=False)
