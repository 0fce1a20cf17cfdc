"""`fdl completions`: print the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from flodl.cli.options import output_options

SHELLS = {
    "bash": 'eval "$(fdl completions bash)"    # in ~/.bashrc',
    "zsh": 'eval "$(fdl completions zsh)"     # in ~/.zshrc, after compinit',
    "fish": "fdl completions fish | source     # in ~/.config/fish/config.fish",
}

# These replace the scripts of click: its bash script drops words where files are possible too, its fish
# script cuts descriptions at the first comma, and none supports `path`, a file in the folder of a program.
# After a folder, no space is added.
_SCRIPTS = {
    "bash": """\
%(complete_func)s() {
    local IFS=$'\\n' response line kind value files= paths=
    response=$(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD %(complete_var)s=bash_complete $1)
    for line in $response; do
        kind=${line%%%%,*} value=${line#*,}
        case $kind in
            plain) COMPREPLY+=("$value") ;;
            path) COMPREPLY+=("$value") paths=1 ;;
            dir) files=-d ;;
            file) files=-f ;;
        esac
    done
    if [[ $paths ]]; then
        compopt -o filenames
        [[ ${#COMPREPLY[@]} -eq 1 && $COMPREPLY == */ ]] && compopt -o nospace
    elif [[ $files && ${#COMPREPLY[@]} -gt 0 ]]; then
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
    "zsh": """\
#compdef %(prog_name)s

%(complete_func)s() {
    local kind key description
    local -a response plain_words described_words paths folders
    (( ! $+commands[%(prog_name)s] )) && return 1
    response=("${(@f)$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) \
%(complete_var)s=zsh_complete %(prog_name)s)}")
    for kind key description in ${response}; do
        case $kind in
            plain)
                if [[ $description == _ ]]; then
                    plain_words+=("$key")
                else
                    described_words+=("$key":"$description")
                fi ;;
            path) if [[ $key == */ ]]; then folders+=("$key"); else paths+=("$key"); fi ;;
            dir) _path_files -/ ;;
            file) _path_files -f ;;
        esac
    done
    (( $#described_words )) && _describe -V unsorted described_words -U
    (( $#plain_words )) && compadd -U -V unsorted -a plain_words
    (( $#folders )) && compadd -U -S '' -V folders -a folders
    (( $#paths )) && compadd -U -V paths -a paths
    return 0
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
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
            case plain path;
                echo $metadata[2];
        end;
    end;
end;

complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)";
""",
}


@click.command("completions", epilog="\b\n" + "\n".join(SHELLS.values()))
@click.argument("shell", type=click.Choice(list(SHELLS)), default="bash")
@output_options
def command(shell: str) -> None:
    """Print the completion script for bash, zsh or fish.

    The script calls fdl at every TAB, so it completes the commands, presets, options, choices, files and
    environments of the current project, at any depth.
    """
    from flodl.cli.program import program

    complete = get_completion_class(shell)
    assert complete is not None
    completer = complete(program, {}, "fdl", "_FDL_COMPLETE")
    completer.source_template = _SCRIPTS[shell]  # type: ignore[misc]
    # The base class, because the bash class would start bash to check its version.
    click.echo(ShellComplete.source(completer), nl=False)
