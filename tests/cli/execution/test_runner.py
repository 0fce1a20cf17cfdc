"""Running commands: folder, arguments, exit code, environment."""

import io
import json
import os
import sys

import pytest

from flodl.cli import main


def test_a_script_runs_in_the_folder_of_its_manifest_and_returns_its_exit_code(project, capfd, monkeypatch):
    root = project({"fdl.yml": "commands: {where: {run: pwd; exit 7}}", "deep/er/x": ""})
    monkeypatch.chdir(root / "deep/er")
    assert main(["where"]) == 7
    assert capfd.readouterr().out == f"{root}\n"


def test_a_script_gets_the_words_after_the_dashes(project, capfd):
    project({"fdl.yml": "commands: {say: {run: printf '%s|', append: -- last}}"})
    assert main(["say", "--", "a b", "--no-append", "-v"]) == 0
    assert capfd.readouterr().out == "a b|--no-append|-v|--|last|"


@pytest.mark.parametrize(
    "words",
    [
        ["say", "--no-append"],
        ["--no-append", "say"],
        ["run", "--no-append", "say"],
        ["run", "say", "--no-append"],
        ["-v", "--no-append", "run", "say"],
    ],
)
def test_no_append_works_before_and_after_the_name(project, capfd, words):
    project({"fdl.yml": "commands: {say: {run: printf '%s|', append: -- last}}"})
    assert main([*words, "--", "x"]) == 0
    assert capfd.readouterr().out == "x|"
    assert main(["--no-append", "version"]) == 0  # nothing is appended there anyway


def test_an_entry_can_be_a_program_in_its_own_folder(project, capfd):
    root = project(
        {
            "fdl.yml": "commands: {train: }",
            "train/fdl.yml": "entry: ./tool.sh x",
            "train/tool.sh": '#!/bin/sh\necho "$PWD $@"\n',
        }
    )
    (root / "train/tool.sh").chmod(0o755)
    assert main(["train", "-v", "a b", "--", "-v"]) == 0
    assert capfd.readouterr().out == f"{root}/train x a b -- -v\n"


def test_a_long_table_of_values_is_passed_as_a_file(project, capfd):
    words = ["x" * 1000] * 120
    project({"fdl.yml": "commands: {t: {run: 'echo $FLODL_RESOLVED_CONFIG #'}}"})
    assert main(["t", "--", *words]) == 0
    file = capfd.readouterr().out.strip()
    assert file.endswith(".fdl/resolved.json")
    with open(file) as stream:
        assert json.load(stream)["arguments"]["value"] == words


def test_an_example_is_used_unchanged_without_a_terminal(project, capfd):
    root = project({"fdl.yml.example": "commands: {t: {run: echo example}}"})
    assert main(["t"]) == 0
    assert capfd.readouterr().out == "example\n"
    assert not (root / "fdl.yml").exists()


@pytest.mark.parametrize(("answer", "copied"), [("\n", True), ("yes\n", True), ("n\n", False), ("", False)])
def test_on_a_terminal_fdl_offers_to_copy_an_example(project, capfd, monkeypatch, answer, copied):
    root = project({"fdl.yml.example": "commands: {t: {run: echo example}}"})
    typed = io.StringIO(answer)  # without a line: the end of the input
    typed.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", typed)
    assert main(["t"]) == 0
    assert (root / "fdl.yml").exists() is copied


def test_monitor_is_passed_in_the_environment(project, capfd):
    project({"fdl.yml": "commands: {a: {run: 'echo \"[$FLODL_MONITOR]\"'}}"})
    assert main(["a"]) == 0
    assert capfd.readouterr().out == "[]\n"
    assert main(["run", "a", "--monitor"]) == 0
    assert capfd.readouterr().out == "[1]\n"


def test_a_program_with_its_own_monitor_option_receives_it(project, capfd, monkeypatch):
    text = "entry: echo\nschema: {options: {monitor: {type: bool}}}\ncommands: {p: {output: {monitor: true}}}"
    project({"fdl.yml": text})
    assert main(["-q", "run", "p", "--monitor"]) == 0
    assert capfd.readouterr().out == "--monitor --monitor\n"
    assert not os.environ.get("FLODL_MONITOR")


def test_verbose_works_after_the_name_of_a_script(project, capfd):
    project({"fdl.yml": "commands: {a: {run: 'echo $FLODL_VERBOSITY'}}"})
    assert main(["a", "--verbose"]) == 0
    assert capfd.readouterr().out == "2\n"
