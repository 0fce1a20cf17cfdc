"""Completion in interactive shells: what a TAB inserts is one word with exactly the offered text."""

import fcntl
import json
import os
import pty
import select
import shutil
import subprocess
import sys
import termios
import time

import pytest

pytestmark = pytest.mark.slow

WORDS = [
    "two words",
    "it's",
    'say "hi"',
    "$HOME",
    "`echo no`",
    "$(echo no)",
    "two\nlines",
    "*",
    "f*.yml",
    "[ab]?",
    "{a,b}",
    "~",
    "a\\b",
    "a;b|c&d>e<f",
    "#x",
    "a!b",
    "-dash",
    "(x)",
    "größe 日本",
    " lead",
    "a:b",
    "a=b",
    "%d",
    'end"',
    "end'",
    "end!",
]
NAMES = ["two words.txt", "$HOME.txt", "a'b\"c.txt", "-dash", "~", "star*.txt", "`x`", "größe.txt"]
START = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        "bind 'set enable-bracketed-paste off'; PS1='ready>'; ",
    ),
    # Otherwise, zsh inserts a TAB if more input follows.
    "zsh": (
        ["zsh", "-f", "-i"],
        "autoload -U compinit; compinit -u -D; bindkey -e; zstyle ':completion:*' insert-tab false; ",
    ),
    "fish": (["fish", "--no-config", "-i"], ""),
}


class Shell:
    """An interactive shell on a terminal of its own."""

    def __init__(self, command, folder, environment):
        self.handle, child = pty.openpty()
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(child)
        self.file = folder / "shown.json"

    def arguments_of(self, text):
        """Type a command, put `show` in front of it, run it and return the arguments of `show`."""
        return self.run(f"{text}\x01show \r")  # ^A: to the beginning of the line

    def run(self, text):
        """Type a command that includes `show`, and return its arguments."""
        self.file.unlink(missing_ok=True)
        os.write(self.handle, text.encode())
        output, end_s = "", time.monotonic() + 120.0
        while not self.file.exists() and time.monotonic() < end_s:
            if select.select([self.handle], [], [], 0.05)[0]:
                output += os.read(self.handle, 1 << 16).decode(errors="replace")
        assert self.file.exists(), output[-3000:]
        return json.loads(self.file.read_text())

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.handle)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A project whose options each have one of the words as their only choice, and some programs."""
    root = tmp_path_factory.mktemp("quoting")
    options = {f"o{number}": {"type": "string", "choices": [word]} for number, word in enumerate(WORDS)}
    manifest = {"entry": "tool", "schema": {"options": options}, "commands": {"here": {"options": {"x": 1}}}}
    manifest["commands"]["files"] = {"path": "inner"}
    (root / "fdl.yml").write_text(json.dumps(manifest))
    for number, name in enumerate(NAMES):
        (root / "inner" / str(number)).mkdir(parents=True)
        (root / "inner" / str(number) / name).touch()
    (root / "inner/fdl.yml").write_text("entry: tool\nschema: {options: {data: {type: path}}}\n")
    programs = root / "bin"
    programs.mkdir()
    (programs / "fdl").write_text(
        f"#!{sys.executable}\nimport sys\nfrom flodl.cli import main\nsys.exit(main())\n"
    )
    (programs / "show").write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"open('arguments', 'w').write(json.dumps(sys.argv[1:]))\n"
        f"os.rename('arguments', {str(root / 'shown.json')!r})\n"
    )
    for program in programs.iterdir():
        program.chmod(0o755)
    return root


@pytest.fixture(params=START)
def shell(request, folder):
    name = request.param
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed here")
    command, setup = START[name]
    environment = {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "TERM": "dumb" if name == "bash" else "xterm",
        "LC_ALL": "C.UTF-8",
    }
    for variable in ("FDL_ENV", "COMP_WORDS", "FLODL_RESOLVED_CONFIG"):
        environment.pop(variable, None)
    script = subprocess.run(["fdl", "completions", name], env=environment, capture_output=True, check=True)
    (folder / f"script.{name}").write_bytes(script.stdout)
    started = Shell(command, folder, environment)
    started.name = name
    started.run(f"{setup}source ./script.{name}; show\r")
    yield started
    started.close()


def completed(shell, words, quote=""):
    """Complete a value for each word, and return the values in the resulting command line."""
    options = "".join(f"--o{WORDS.index(word)} {quote}\t" for word in words)
    found = shell.arguments_of(f"fdl here {options}")
    assert found[:2] == ["fdl", "here"]
    return found[2:]


def command_line(words):
    return [part for word in words for part in (f"--o{WORDS.index(word)}", word)]


def test_a_completed_word_is_quoted(shell):
    # fish does not quote a tilde, so it is not offered there.
    words = [word for word in WORDS if word != "~" or shell.name != "fish"]
    assert completed(shell, words) == command_line(words)


@pytest.mark.parametrize("quote", ['"', "'"])
def test_a_completed_word_is_quoted_after_an_opening_quote(shell, quote):
    words = [
        "two words",
        "it's",
        'say "hi"',
        "$HOME",
        "`echo no`",
        "*",
        "a\\b",
        "a!b",
        'end"',
        "end'",
        "end!",
    ]
    assert completed(shell, words, quote) == command_line(words)


def test_files_are_quoted(shell):
    options = "".join(f"--data {number}/\t" for number in range(len(NAMES)))
    found = shell.arguments_of(f"fdl files {options}")
    assert found[3::2] == [f"{number}/{name}" for number, name in enumerate(NAMES)]


@pytest.mark.parametrize("typed", ["ray\th", "ray:\th", "ray:h"])
def test_a_word_is_completed_after_its_colon(shell, typed):
    found = shell.arguments_of(f"fdl sweep --search {typed}\t--runs 3")
    assert found == ["fdl", "sweep", "--search", "ray:hyperopt", "--runs", "3"]
