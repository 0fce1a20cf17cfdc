"""Which commands execute code of the project: exactly those that the manual lists."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flodl.cli import main
from flodl.cli.machine.torch_facts import query_torch
from flodl.monitor import Monitor

MANUAL = Path(__file__).parents[2] / "docs"
ENTRY = """#!/bin/sh
# knows --fdl-schema
echo "$*" >> ran
echo '{"options": {"model": {"type": "string", "completer": "echo completer >> ran; echo vit"}}}'
"""
FILES = {
    "fdl.yml": "entry: ./entry.sh\ncommands: {script: {run: echo script >> ran}, preset: {options: {x: 1}}}",
    "entry.sh": ENTRY,
    "module.py": "with open('ran', 'a') as file: file.write('module')\ndef target(): return 1\n",
    "json.py": "with open('ran', 'a') as file: file.write('json')\n",
    "torch.py": "with open('ran', 'a') as file: file.write('torch')\n",
}


@pytest.fixture
def ran(project):
    """Return a function that runs fdl and returns what it executed of the project."""
    root = project(FILES)
    (root / "entry.sh").chmod(0o755)
    Monitor(1, root / "run", console=False, resources=False).close()

    def run(*words):
        (root / "ran").unlink(missing_ok=True)
        code = main(list(words))
        assert code in (0, 1)
        return (root / "ran").read_text().split() if (root / "ran").exists() else []

    return run


NOTHING = [
    [],
    ["--help"],
    ["config", "show"],
    ["config", "show", "--json"],
    ["schema", "list"],
    ["schema", "clear"],
    ["monitor", "run", "--json"],
    ["init", "other"],
    ["completions", "zsh"],
    ["api-ref", "Graph"],
    ["version"],
    ["script", "--help"],
    ["run", "--dry-run", "script"],
]
ASKS = [
    ["preset", "--help"],
    ["run", "--dry-run", "preset"],
    ["config", "lint"],
    ["preset", "--refresh-schema"],
]


@pytest.mark.parametrize("words", NOTHING, ids=" ".join)
def test_these_commands_execute_nothing_of_the_project(ran, words):
    assert ran(*words) == []


@pytest.mark.parametrize("words", ASKS, ids=" ".join)
def test_these_commands_only_ask_the_entry_for_its_options(ran, words):
    assert ran(*words) == ["--fdl-schema"]
    repeated = ran(*words)  # the answer is cached
    assert repeated == (["--fdl-schema"] if "--refresh-schema" in words else [])
    assert ran("schema", "refresh") == ["--fdl-schema"]


def test_these_commands_execute_the_project(ran, capfd, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert ran("script") == ["script"]
    assert ran("run", "script") == ["script"]
    assert ran("preset")[-2:] == ["--x", "1"]
    assert ran("bench", "module.py:target") == ["module"]


@pytest.mark.slow
def test_a_tab_asks_the_entry_and_runs_the_completer_of_an_option(project):
    root = project(FILES)
    (root / "entry.sh").chmod(0o755)
    program = "import sys; sys.path.remove(''); from flodl.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "preset", "--model", ""],
        env={**os.environ, "_FDL_COMPLETE": "bash_complete"}, capture_output=True, text=True, cwd=root,
    )  # fmt: skip
    assert done.stdout == "plain,vit\n"
    assert (root / "ran").read_text().split() == ["--fdl-schema", "completer"]


@pytest.mark.slow
def test_asking_python_about_torch_imports_nothing_from_the_working_directory(ran):
    query_torch(sys.executable)
    assert not Path("ran").exists()


def test_the_manual_lists_what_each_command_executes():
    text = (MANUAL / "manifest.md").read_text()
    section = text.partition("## Which commands execute code of the project?")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    executes_nothing = rows[0][0]
    assert rows[0][1] == "nothing |"
    for words in NOTHING[:-2]:
        names = [
            word for word in words[:2] if word in ("config", "show", "schema", "list", "clear")
        ] or words[:1]
        assert f"`{' '.join(['fdl', *names])}`" in executes_nothing
    assert "Only some commands execute code of the project" in (MANUAL / "cli.md").read_text()
