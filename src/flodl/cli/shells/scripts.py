"""The completion script of each shell.

A script calls the program with the words up to the cursor as arguments, as typed, and offers the candidates
that it prints: `plain` words, a `path` in the folder of a program, or all files (`file`) and folders (`dir`).
After a folder, no space is added.
"""

from __future__ import annotations

# bash splits words at colons, and replaces only what follows the last one: parts of a word are joined here.
# In bash, the words of COMPREPLY are inserted as they are. With `-o filenames`, readline quotes them and
# shows them without their folder, but it does not quote `$`, and it adds a slash to each word that is the
# name of a folder, so this is only for files.
# After an opening quote, readline adds the closing one, unless the word already ends with that character.
_BASH = r"""
%(complete_func)s() {
    local line kind value at before= prefix files= paths= current=${COMP_WORDS[COMP_CWORD]} rest=$COMP_LINE
    local -a words=() typed=()
    COMPREPLY=()
    for ((at = 0; at <= COMP_CWORD; at++)); do
        value=${COMP_WORDS[at]}
        if [[ $before && $value && $rest == "$value"* && $before$value == *:* ]]; then
            before+=$value typed[${#typed[@]} - 1]=$before
        else
            before=$value typed+=("$value")
        fi
        rest=${rest#*"$value"}
    done
    [[ $current == : ]] && prefix=$before || prefix=${before%%"$current"}
    while IFS= read -r line; do
        kind=${line%%%%,*}
        printf -v value '%%b' "${line#*,}"
        case $kind in
            plain) words+=("$value") ;;
            path) words+=("$value") paths=1 ;;
            dir) files=-d ;;
            file) files=-f ;;
        esac
    done < <(env %(complete_var)s=bash_complete \
        "${1/#\~\//$HOME/}" "${typed[@]:1}" 2>/dev/null)
    words=("${words[@]#"$prefix"}")
    if [[ $files && ${#words[@]} -gt 0 ]]; then
        paths=1
        while IFS= read -r line; do
            words+=("$line")
        done < <(compgen $files -- "$current")
    fi
    if [[ $files == -d && ${#words[@]} -eq 0 ]]; then
        compopt -o dirnames
    elif [[ $files && ${#words[@]} -eq 0 ]]; then
        compopt -o default
    elif [[ $paths && ${words[*]} != *[\$\`]* ]]; then
        compopt -o filenames
        COMPREPLY=("${words[@]}")
    else
        for value in "${words[@]}"; do
            case $current in
                \"*)
                    value=${value//\\/\\\\} value=${value//\"/\\\"}
                    value=${value//\$/\\\$} value=${value//\`/\\\`} value=${value//\!/\"\'!\'\"}
                    [[ $value == *\" ]] && value+=\" ;;
                \'*)
                    value=${value//\'/\'\\\'\'}
                    [[ $value == *\' ]] && value+=\' ;;
                *) printf -v value '%%q' "$value" ;;
            esac
            COMPREPLY+=("$value")
        done
    fi
    [[ $paths && ${#words[@]} -eq 1 && ${words[0]} == */ ]] && compopt -o nospace
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

# zsh quotes what it inserts. In `_describe`, a colon ends the word, and a backslash escapes.
_ZSH = r"""
#compdef %(prog_name)s

%(complete_func)s() {
    local kind key description
    local -a response plain_words described_words paths folders
    (( ! $+commands[%(prog_name)s] )) && return 1
    response=("${(@f)$(env %(complete_var)s=zsh_complete \
        %(prog_name)s "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    for kind key description in "${(@)response}"; do
        key=${(g::)key}
        case $kind in
            plain)
                if [[ $description == _ ]]; then
                    plain_words+=("$key")
                else
                    key=${key//\\/\\\\}
                    described_words+=("${key//:/\\:}:$description")
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
"""

# fish quotes what it inserts. Candidates are separated by NUL, because they may contain newlines.
_FISH = r"""
function %(complete_func)s;
    set -l words (commandline -opc);
    set -l response (env %(complete_var)s=fish_complete \
        %(prog_name)s $words[2..-1] (commandline -ct) 2>/dev/null | string split0);
    set -l at 1;
    while test $at -lt (count $response);
        set -l value $response[(math $at + 1)];
        switch $response[$at];
            case dir;
                for found in (__fish_complete_directories $value);
                    printf '%%s\0' $found;
                end;
            case file;
                for found in (__fish_complete_path $value);
                    printf '%%s\0' $found;
                end;
            case plain path;
                printf '%%s\0' $value;
        end;
        set at (math $at + 2);
    end;
end;

complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s | string split0)";
"""

SCRIPTS = {"bash": _BASH.lstrip(), "zsh": _ZSH.lstrip(), "fish": _FISH.lstrip()}
