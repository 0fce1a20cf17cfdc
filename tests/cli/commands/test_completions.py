"""Completion in real shells: each shell runs the script and completes words."""

import os
import shutil
import subprocess
import sys
import textwrap

import pytest

from flodl.cli import main
from flodl.cli.completion import words_after
from flodl.cli.manifest.loader import load
from flodl.cli.program import program

FILES = {
    "fdl.yml": "commands: {hello: {run: echo}, train: , bad: {run: a, path: b}}",
    "fdl.prod.yml": "commands: {deploy: {run: echo}}",
    "train/fdl.yml": """
        entry: tool
        schema:
          args: [{name: stage, type: string, choices: [first, second], required: false}]
          options:
            mode: {type: string, choices: [fast, slow], description: How fast}
            data: {type: path, short: d}
            model: {type: string, completer: "printf 'resnet\\nvit\\n'"}
        commands:
          quick: {options: {mode: fast}, description: A quick one}
          inner:
    """,
    "train/inner/fdl.yml": "entry: tool\ncommands: {deep: {options: {x: 1}}}",
    "digits.csv": "",
    "digits.txt": "",
}

BASH = """
cd "$1"; shift
source "$SCRIPTS/bash"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
compopt() { echo compopt "$@"; }
_fdl_completion fdl
printf '%s\\n' "${COMPREPLY[@]}"
"""

ZSH = """
cd "$1"; shift
compdef() { :; }
_describe() { local name=$4; [[ $1 == -V ]] && name=$3; print -l -- "${(@P)name}"; }
compadd() { print -l -- "${(@P)@[-1]}"; }
_path_files() { print -- "files $*"; }
source "$SCRIPTS/zsh"
words=("$@"); CURRENT=$#
_fdl_completion
"""

FISH = """
cd $argv[1]
source $SCRIPTS/fish
complete -C (string join -- ' ' $argv[2..-1])
"""

SHELLS = {
    "bash": (BASH, ["bash", "--norc", "-c"]),
    "zsh": (ZSH, ["zsh", "-f", "-c"]),
    "fish": (FISH, ["fish", "--no-config", "-c"]),
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A folder with an `fdl` that runs this checkout, and the scripts that it prints."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "fdl").write_text(
        f"#!{sys.executable}\nimport sys\nfrom flodl.cli import main\nsys.exit(main())\n"
    )
    (folder / "fdl").chmod(0o755)
    for shell in SHELLS:
        done = subprocess.run([folder / "fdl", "completions", shell], capture_output=True, check=True)
        (folder / "scripts").mkdir(exist_ok=True)
        (folder / "scripts" / shell).write_bytes(done.stdout)
    return folder


def complete(shell, programs, folder, *words):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    script, start = SHELLS[shell]
    # The words after -c are $0, $1 ... in bash and zsh, and $argv in fish.
    name = ["--"] if shell == "fish" else [shell]
    own = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(programs),
        "SCRIPTS": f"{programs}/scripts",
    }
    done = subprocess.run(
        [*start, script, *name, str(folder), "fdl", *words],
        env={**os.environ, **own},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    lines = done.stdout.splitlines()
    # fish separates a word and its description with a tab, zsh with a colon.
    return {line.split("\t")[0].split(":")[0] for line in lines if line}


CASES = {
    "commands of fdl": (["qu"], {"quickstart"}),
    "commands of the project": (["t"], {"test", "train"}),
    "environments": (["pro"], {"prod"}),
    "an environment as value": (["--env", ""], {"prod"}),
    "through an environment": (["prod", "dep"], {"deploy"}),
    "presets and commands": (["train", "q"], {"quick"}),
    "any depth": (["train", "inner", ""], {"deep"}),
    "options": (["train", "--mo"], {"--mode", "--model"}),
    "choices": (["train", "--mode", ""], {"fast", "slow"}),
    "choices with a prefix": (["train", "quick", "--mode", "f"], {"fast"}),
    "words of a completer": (["train", "--model", "v"], {"vit"}),
    "choices of an argument": (["train", "sec"], {"second"}),
    "through run": (["run", "train", "--mode", "s"], {"slow"}),
    "options of a command of fdl": (["version", "--js"], {"--json"}),
    "choices of a command of fdl": (["completions", "z"], {"zsh"}),
    "inner commands of fdl": (["config", "s"], {"show"}),
    "environments of config show": (["config", "show", ""], {"prod"}),
    "an unknown command": (["no-such", ""], set()),
}


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_completes_words(shell, programs, project):
    """One test for each shell: each case starts the shell and, in it, fdl."""
    folder = project(FILES)
    found = {case: complete(shell, programs, folder, *words) for case, (words, _) in CASES.items()}
    assert found == {case: expected for case, (_, expected) in CASES.items()}
    # bash splits it into three words, and replaces only the last one.
    words, expected = (["--mode", "=", "f"], "fast") if shell == "bash" else (["--mode=f"], "--mode=fast")
    assert complete(shell, programs, folder, "train", *words) == {expected}


PATH_FILES = {
    "fdl.yml": "entry: tool\nschema: {options: {data: {type: path, short: d}}}\n"
    "commands: {here: {options: {x: 1}}, train: , say: {run: echo}}",
    "digits.csv": "",
    "deep/digits-of-nobody.csv": "",
    "train/fdl.yml": "entry: tool\nschema: {options: {data: {type: path, short: d}}, "
    "args: [{name: extra, type: path}]}\ncommands: {dig: {options: {x: 1}}}",
    "train/digits of mine.csv": "",
    "train/digital/one.txt": "",
    "train/.digest": "",
}


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_files_are_completed_in_the_folder_of_the_program(shell, programs, project):
    folder = project(PATH_FILES)
    # Tells bash that a word is a file, and to add no space after a folder.
    markers = {"compopt -o filenames", "compopt -o nospace"} if shell == "bash" else set()

    def offered(*words, where=folder):
        return complete(shell, programs, where, *words) - markers

    assert offered("train", "--data", "dig") == {"digits of mine.csv", "digital/"}
    assert offered("train", "-d", "digital/") == {"digital/one.txt"}
    assert offered("train", "-d", "./digital/o") == {"./digital/one.txt"}
    assert offered("train", "-d", "../digi") == {"../digits.csv"}
    assert offered("train", "-d", ".dig") == {".digest"}
    assert offered("train", "-d", "nowhere/") == set()
    assert offered("train", "dig") == {"dig", "digits of mine.csv", "digital/"}
    assert offered("say", "--", "dig", where=folder / "deep") == {"digits.csv"}


@pytest.mark.slow
@pytest.mark.parametrize("words", [("here", "--data", "dig"), ("here", "-d", "dig"), ("say", "--", "dig")])
@pytest.mark.parametrize(
    ("shell", "expected"), [("bash", "compopt -o default"), ("zsh", "files -f"), ("fish", "digits.csv")]
)
def test_in_that_folder_the_shell_itself_completes_files(shell, expected, words, programs, project):
    assert complete(shell, programs, project(PATH_FILES), *words) == {expected}


@pytest.mark.slow
def test_absolute_paths_are_completed_by_the_shell(programs, project):
    folder = project(PATH_FILES)
    assert complete("bash", programs, folder, "train", "-d", f"{folder}/dig") == {"compopt -o default"}


@pytest.mark.slow
def test_bash_adds_a_space_after_a_file_but_not_after_a_folder(programs, project):
    folder = project(PATH_FILES)
    assert "compopt -o nospace" in complete("bash", programs, folder, "train", "-d", "digita")
    assert "compopt -o nospace" not in complete("bash", programs, folder, "train", "-d", "digits")


@pytest.mark.slow
def test_bash_offers_words_and_files_where_both_are_possible(programs, project):
    folder = project({"fdl.yml": "entry: tool\nschema: {args: [{name: data, type: path}]}\n"
                      "commands: {bed: {path: .}}", "digits.csv": "", "bed.csv": ""})  # fmt: skip
    found = complete("bash", programs, folder, "bed", "bed", "be")
    assert found == {"compopt -o filenames", "bed", "bed.csv"}


@pytest.mark.slow
def test_fish_shows_the_full_description(programs, project):
    folder = project({"fdl.yml": "commands: {hello: {run: echo, description: 'Say hello, loudly'}}"})
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed here")
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "SCRIPTS": f"{programs}/scripts"}
    done = subprocess.run(
        ["fish", "--no-config", "-c", FISH, "--", str(folder), "fdl", "hel"],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "hello\tSay hello, loudly\n"


@pytest.mark.slow
def test_zsh_and_fish_complete_presets(programs, project):
    folder = project(FILES)
    for shell, expected in (("fish", "quick"), ("zsh", "quick")):
        assert expected in complete(shell, programs, folder, "train", "qui")


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_broken_manifest_does_not_break_completion(shell, programs, project):
    folder = project({"fdl.yml": "commands: ["})
    assert complete(shell, programs, folder, "vers") == {"version"}
    assert complete(shell, programs, folder, "train", "") == set()


def offered(*words):
    """Return what `fdl` completes after these words, the last of which is incomplete."""
    context = program.make_context("fdl", list(words[:-1]), resilient_parsing=True)
    name, command, rest = program.resolve_command(context, list(words[:-1]))
    inner = command.make_context(name, rest, parent=context, resilient_parsing=True)
    return {item.value for item in command.shell_complete(inner, words[-1])}


def test_run_without_a_name_completes_the_options_of_the_projects_run(project):
    schema = "schema: {options: {epochs: {type: int}, mode: {type: string, choices: [fast, slow]}}}"
    project({"fdl.yml": f"entry: tool\n{schema}\ncommands: {{run: {{training: {{epochs: 1}}}}}}"})
    assert {"--dry-run", "--epochs", "--mode"} <= offered("run", "--")
    assert offered("run", "--mode", "f") == {"fast"}
    assert offered("run", "run", "--mode", "s") == {"slow"}


def test_a_flag_with_a_true_default_is_offered_with_its_negation(project):
    options = "{compile: {type: bool, default: true}, loud: {type: bool, env: LOUD}, fast: {type: bool}}"
    text = f"entry: tool\nschema: {{options: {options}}}\ncommands: {{p: {{training: {{lr: 1}}}}}}"
    manifest = load(project({"fdl.yml": text}) / "fdl.yml")
    offered = {item.value for item in words_after(manifest, ("p",), "--")}
    assert {"--compile", "--no-compile", "--loud", "--no-loud", "--fast"} <= offered
    assert "--no-fast" not in offered


@pytest.mark.slow
def test_a_script_with_args_completes_itself(programs, tmp_path):
    script = tmp_path / "digits"
    script.write_text(
        f"#!{sys.executable}\n"
        + textwrap.dedent(
            """
            from dataclasses import dataclass
            from typing import Literal
            from flodl.cli import Args

            @dataclass
            class Job:
                mode: Literal["fast", "slow"] = "fast"

            Args(Job).parse()
            """
        )
    )
    script.chmod(0o755)
    environment = {**os.environ, "_DIGITS_COMPLETE": "bash_complete", "COMP_CWORD": "2"}
    done = subprocess.run(
        [script], env={**environment, "COMP_WORDS": "digits --mode "}, capture_output=True, text=True
    )
    assert done.stdout.split() == ["plain,fast", "plain,slow"]


def test_an_unknown_shell_is_an_error(capsys):
    assert main(["completions", "tcsh"]) == 2
    told = "Invalid value for '[SHELL]': 'tcsh' is not one of 'bash', 'zsh', 'fish'"
    assert told in capsys.readouterr().err


def test_bash_is_the_default(capsys):
    assert main(["completions"]) == 0
    assert "complete -o nosort -F _fdl_completion fdl" in capsys.readouterr().out
