"""The words between a completion script and a program."""

import sys

import click
import pytest
from click.shell_completion import CompletionItem, get_completion_class

from flodl.cli.completion import project_words, words_after
from flodl.cli.manifest.loader import load
from flodl.cli.program import program
from flodl.cli.project import Project
from flodl.cli.shells import install_completion, script_for
from flodl.cli.shells.words import escape, unquote


def completion(shell, command=program):
    install_completion()
    return get_completion_class(shell)(command, {}, "fdl", "_FDL_COMPLETE")


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("plain", "plain"),
        ("two\\ words", "two words"),
        ("'it is'", "it is"),
        ('"say \\"hi', 'say "hi'),
        ("'half open", "half open"),
        ("$'a\\nb\\'c'", "a\nb'c"),
        ("$'\\E\\x41\\101'", "\33AA"),
        ("", ""),
        ("''", ""),
    ],
)
def test_a_typed_word_is_unquoted(typed, text):
    assert unquote(typed) == text


def test_words_are_read_one_by_one_from_the_arguments(monkeypatch):
    monkeypatch.delenv("COMP_WORDS", raising=False)
    monkeypatch.setattr(sys, "argv", ["fdl", "run", "two\\ words", "'it", ""])
    assert completion("bash").get_completion_args() == (["run", "two words", "it"], "")
    # fish has removed the quotes of complete words.
    assert completion("fish").get_completion_args() == (["run", "two\\ words", "'it"], "")
    monkeypatch.setattr(sys, "argv", ["fdl"])
    assert completion("zsh").get_completion_args() == ([], "")


def test_scripts_of_click_work_too(monkeypatch):
    monkeypatch.setenv("COMP_WORDS", "fdl run --env ")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert completion("bash").get_completion_args() == (["run", "--env"], "")
    monkeypatch.setenv("COMP_CWORD", "x")
    assert completion("bash").get_completion_args() == (["run", "--env"], "")


def test_a_candidate_is_one_line_with_its_bytes(monkeypatch):
    item = CompletionItem("a\nb\\c\udcff", help="two\nlines\t\33[31m")
    assert completion("bash").format_completion(item) == "plain,a\\nb\\\\c\\0377"
    assert completion("zsh").format_completion(item) == "plain\na\\nb\\\\c\\0377\ntwo lines [31m"
    assert escape("größe") == "größe"


def test_fish_gets_only_candidates_that_it_can_insert():
    words = ["a b", "~", "a\tb", "\udcff", "two\nlines"]
    joined = completion("fish").join([CompletionItem(word) for word in words])
    assert joined == "plain\0a b\0plain\0two\nlines\0"


@pytest.mark.parametrize("error", [ValueError, OSError, RecursionError, click.exceptions.Exit])
def test_a_failure_offers_nothing(monkeypatch, error):
    def fail(*_arguments):
        raise error

    found = completion("bash")
    monkeypatch.setattr(found, "get_completions", fail)
    assert found.complete() == ""


def test_the_name_of_a_program_is_quoted_in_its_script():
    for shell in ("bash", "zsh", "fish"):
        assert "'my tool; rm'" in script_for(shell, program, "my tool; rm", "_X_COMPLETE")


def test_commands_and_arguments_that_look_like_options_are_not_offered(project):
    text = (
        "entry: tool\nschema: {args: [{name: a, type: string, choices: [-x, y]}],"
        " options: {mode: {type: string, choices: [-x, y]}}}\n"
        "commands: {-c: {run: echo}, d: {path: .}, p: {options: {x: 1}}}\n"
    )
    manifest = load(project({"fdl.yml": text}) / "fdl.yml")
    assert {item.value for item in project_words(Project())} == {"d", "p"}
    assert {item.value for item in words_after(manifest, ("p",), "")} == {"y"}
    assert {item.value for item in words_after(manifest, ("d",), "")} == {"d", "p", "y"}
    # After an option, the next word is its value.
    assert {item.value for item in words_after(manifest, ("p", "--mode"), "")} == {"-x", "y"}


def test_files_that_look_like_options_or_users_are_offered_with_their_folder(project):
    root = project(
        {
            "fdl.yml": "commands: {t: }",
            "t/fdl.yml": "entry: tool\nschema: {args: [{name: f, type: path}]}",
            "t/-rf": "",
            "t/~root": "",
            "t/plain": "",
        }
    )
    offered = {item.value for item in words_after(load(root / "fdl.yml"), ("t",), "")}
    assert offered == {"./-rf", "./~root", "plain", "fdl.yml"}
