"""Manifests that are there and cannot be read: never passed over, never a traceback."""

import contextlib
import os

import pytest

from flodl.cli import main


def a_loop(path):
    path.symlink_to(path.name)


def a_dangling_link(path):
    path.symlink_to("gone.yml")


def a_folder(path):
    path.mkdir()


def a_pipe(path):
    os.mkfifo(path)


KINDS = [
    (a_loop, "Too many levels of symbolic links"),
    (a_dangling_link, "it is a link to gone.yml, which is not there"),
    (a_folder, "it is a folder"),
    (a_pipe, "it is no regular file"),
]


@pytest.mark.parametrize(("make", "why"), KINDS)
@pytest.mark.parametrize("words", [["run"], ["config", "show"], ["config", "lint"], ["x"]])
def test_a_manifest_that_cannot_be_read_hides_the_one_further_up(
    project, capfd, monkeypatch, make, why, words
):
    outer = project({"fdl.yml": "commands: {run: {run: echo OUTER}, x: {run: echo OUTER}}", "inner/a": ""})
    make(outer / "inner/fdl.yml")
    monkeypatch.chdir(outer / "inner")
    assert main(words) == 1
    told = capfd.readouterr()
    assert "OUTER" not in told.out
    assert f"inner/fdl.yml is there but cannot be read: {why}" in told.err


@pytest.mark.parametrize(("make", "why"), KINDS)
def test_fdl_itself_works_beside_it(project, capsys, make, why):
    make(project({}) / "fdl.yml")
    assert main(["version"]) == 0
    assert main([]) == 0
    told = capsys.readouterr()
    assert "quickstart" in told.out
    assert why in told.err


@pytest.mark.parametrize(("make", "why"), KINDS)
@pytest.mark.parametrize(
    "words", [["--env", "o", "x"], ["o", "x"], ["config", "show", "o"], ["config", "lint"]]
)
def test_an_overlay_that_cannot_be_read_is_named(project, capsys, make, why, words):
    make(project({"fdl.yml": "commands: {x: {run: echo}}"}) / "fdl.o.yml")
    assert main(words) == 1
    assert f"fdl.o.yml is there but cannot be read: {why}" in capsys.readouterr().err


@pytest.mark.parametrize(("make", "why"), KINDS)
def test_what_is_inherited_and_cannot_be_read_is_named_with_the_line(project, capsys, make, why):
    make(project({"fdl.yml": "description: x\ninherit-from: base.yml"}) / "base.yml")
    assert main(["config", "show"]) == 1
    told = capsys.readouterr().err
    assert "fdl.yml:2: " in told
    assert "there is no" in told or why in told or "is the folder" in told


@pytest.mark.parametrize("words", ["fdl --env ", "fdl config show ", "fdl "])
def test_a_shell_that_completes_hears_nothing_of_it(project, capfd, monkeypatch, words):
    a_loop(project({}) / "fdl.yml")
    monkeypatch.setenv("_FDL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    with contextlib.suppress(SystemExit):
        main([])
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("key", ["inherit-from", "entry"])
def test_a_nul_in_a_value_is_an_error_with_its_line(project, capsys, key):
    project({"fdl.yml": f'description: x\n{key}: "a\\0b"\n'})
    for words in (["config", "show"], ["config", "lint"], ["run"]):
        assert main(words) == 1
        assert "fdl.yml:2: a NUL character stands in 'a\\x00b'" in capsys.readouterr().err


def test_a_cycle_is_named_with_the_line_that_closes_it(project, capsys):
    project({"fdl.yml": "description: x\ninherit-from: b.yml", "b.yml": "# a\n# b\ninherit-from: fdl.yml"})
    assert main(["config", "show"]) == 1
    assert "b.yml:3: inherit-from goes in a cycle: " in capsys.readouterr().err


@pytest.mark.parametrize("words", [["setup", "--list"], ["libtorch", "list"], ["diagnose", "--json"]])
def test_a_home_that_is_a_loop_is_as_good_as_none(tmp_path, monkeypatch, capsys, words):
    a_loop(tmp_path / "home")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLODL_HOME", str(tmp_path / "home"))
    assert main(words) in (0, 1)
