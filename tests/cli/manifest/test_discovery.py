"""Finding manifests and overlays; files that exist but cannot be read are errors, never skipped."""

import contextlib
import os

import pytest

from flodl.cli import main
from flodl.cli.manifest.discovery import find_manifest, manifest_in, overlay_names


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
    (a_dangling_link, "it is a link to gone.yml, which does not exist"),
    (a_folder, "it is a folder"),
    (a_pipe, "it is not a regular file"),
]


@pytest.mark.parametrize(("make", "reason"), KINDS)
@pytest.mark.parametrize("words", [["run"], ["config", "show"], ["config", "lint"], ["x"]])
def test_an_unreadable_manifest_is_not_skipped_for_one_in_a_parent_folder(
    project, capfd, monkeypatch, make, reason, words
):
    outer = project({"fdl.yml": "commands: {run: {run: echo OUTER}, x: {run: echo OUTER}}", "inner/a": ""})
    make(outer / "inner/fdl.yml")
    monkeypatch.chdir(outer / "inner")
    assert main(words) == 1
    shown = capfd.readouterr()
    assert "OUTER" not in shown.out
    assert f"inner/fdl.yml exists but cannot be read: {reason}" in shown.err


@pytest.mark.parametrize(("make", "reason"), KINDS)
def test_built_in_commands_work_next_to_an_unreadable_manifest(project, capsys, make, reason):
    make(project({}) / "fdl.yml")
    assert main(["version"]) == 0
    assert main([]) == 0
    shown = capsys.readouterr()
    assert "quickstart" in shown.out
    assert reason in shown.err


@pytest.mark.parametrize(("make", "reason"), KINDS)
@pytest.mark.parametrize(
    "words", [["--env", "o", "x"], ["o", "x"], ["config", "show", "o"], ["config", "lint"]]
)
def test_an_unreadable_overlay_is_named(project, capsys, make, reason, words):
    make(project({"fdl.yml": "commands: {x: {run: echo}}"}) / "fdl.o.yml")
    assert main(words) == 1
    assert f"fdl.o.yml exists but cannot be read: {reason}" in capsys.readouterr().err


@pytest.mark.parametrize(("make", "reason"), KINDS)
def test_an_unreadable_parent_is_named_with_the_line(project, capsys, make, reason):
    make(project({"fdl.yml": "description: x\ninherit-from: base.yml"}) / "base.yml")
    assert main(["config", "show"]) == 1
    shown = capsys.readouterr().err
    assert "fdl.yml:2: " in shown
    assert "does not exist" in shown or reason in shown or "is the folder" in shown


@pytest.mark.parametrize("words", ["fdl --env ", "fdl config show ", "fdl "])
def test_completion_prints_no_error_for_an_unreadable_manifest(project, capfd, monkeypatch, words):
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
        assert "fdl.yml:2: 'a\\x00b' contains a NUL character" in capsys.readouterr().err


def test_a_cycle_is_named_with_the_line_that_closes_it(project, capsys):
    project({"fdl.yml": "description: x\ninherit-from: b.yml", "b.yml": "# a\n# b\ninherit-from: fdl.yml"})
    assert main(["config", "show"]) == 1
    assert "b.yml:3: inherit-from forms a cycle: " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("words", [["setup", "--list"], ["libtorch", "list"], ["diagnose", "--json"]])
def test_commands_survive_a_home_that_is_a_link_loop(tmp_path, monkeypatch, capsys, words):
    a_loop(tmp_path / "home")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLODL_HOME", str(tmp_path / "home"))
    assert main(words) in (0, 1)


def test_yaml_takes_precedence_over_yml_over_json_over_examples(project):
    root = project({"fdl.yml.dist": "", "fdl.json": "{}"})
    assert manifest_in(root).name == "fdl.json"
    (root / "fdl.yml").touch()
    assert manifest_in(root).name == "fdl.yml"
    (root / "fdl.yaml").touch()
    assert manifest_in(root).name == "fdl.yaml"


def test_an_example_is_used_if_there_is_no_manifest(project):
    root = project({"inner/fdl.yml.example": "", "fdl.yml": ""})
    assert find_manifest(root / "inner").name == "fdl.yml.example"
    (root / "inner/deep").mkdir()
    assert find_manifest(root / "inner/deep").parent == root / "inner"


def test_overlays_are_listed_once_and_sorted(project):
    names = [
        "fdl.yml",
        "fdl.prod.yml",
        "fdl.ci.json",
        "fdl.ci.yaml",
        "fdl.yml.example",
        "fdl.yml.bak",
        "fdl..yml",
    ]
    root = project(dict.fromkeys(names, ""))
    assert overlay_names(root / "fdl.yml") == ["ci", "prod"]
