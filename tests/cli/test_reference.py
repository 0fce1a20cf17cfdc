"""The docs of the command line match it: the reference, the tutorial and its example project."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from doctest import ELLIPSIS, OutputChecker
from pathlib import Path

import pytest

from flodl.cli import main
from flodl.cli.execution.lint import lint

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs/manifest.md").read_text(encoding="utf-8")
SESSIONS = re.findall(r"^```console\n(.*?)^```", TUTORIAL, flags=re.DOTALL | re.MULTILINE)


def test_the_reference_matches_the_commands():
    spec = importlib.util.spec_from_file_location("write_cli_reference", ROOT / "docs/write_cli_reference.py")
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    assert writer.PAGE.read_text(encoding="utf-8") == writer.reference(), "run docs/write_cli_reference.py"


@pytest.fixture
def example(tmp_path, monkeypatch):
    shutil.copytree(
        ROOT / "examples/manifest_project", tmp_path / "project", ignore=shutil.ignore_patterns(".fdl")
    )
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "project"


@pytest.fixture(scope="module")
def fdl(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bin")
    (folder / "fdl").write_text(
        f"#!{sys.executable}\nimport sys\nfrom flodl.cli import main\nsys.exit(main())\n"
    )
    (folder / "fdl").chmod(0o755)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("session", SESSIONS, ids=lambda text: text.splitlines()[0])
def test_a_session_in_the_tutorial_prints_what_is_shown(session, example, fdl):
    steps = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", session, flags=re.MULTILINE)
    assert steps
    for command, shown in steps:
        done = subprocess.run(
            ["sh", "-c", command], env={**os.environ, "PATH": f"{fdl}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert OutputChecker().check_output(shown, done.stdout, ELLIPSIS), done.stdout


def test_the_manifest_in_the_tutorial_is_that_of_the_example():
    shown = re.search(r"^```yaml\n(.*?)^```", TUTORIAL, flags=re.DOTALL | re.MULTILINE)[1]
    assert shown == (ROOT / "examples/manifest_project/train/fdl.yml").read_text()


@pytest.mark.slow
def test_the_example_trains(example, capfd):
    assert main(["train", "quick", "-o", "runs"]) == 0
    assert "accuracy: " in capfd.readouterr().out
    assert (example / "train/runs/model.fdl").is_file()
    assert main(["clean"]) == 0
    assert not (example / "train/runs").exists()


@pytest.mark.parametrize("manifest", ["fdl.yml", "examples/manifest_project/fdl.yml"])
def test_our_own_manifests_pass_lint(manifest):
    assert not lint(ROOT / manifest).problems


def test_every_command_of_our_own_manifest_has_a_description(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "Commands of fdl.yml (flodl itself):" in shown
    assert re.search(r"unit +Run the tests", shown)
    assert main(["run", "--dry-run", "unit", "--", "tests/core"]) == 0
    assert "python -m pytest -q -n auto" in capsys.readouterr().out
