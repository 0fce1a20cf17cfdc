"""`fdl add`: the requirements of a project get an extra of flodl."""

import json

import pytest

import flodl
from flodl.cli import main


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("flodl>=0.1.0\npytest>=8\n", "flodl[hf]>=0.1.0\npytest>=8\n"),
        ("pytest\nflodl  # the framework\n", "pytest\nflodl[hf]  # the framework\n"),
        ("flodl[zstd]==0.1; python_version > '3'\n", "flodl[hf,zstd]==0.1; python_version > '3'\n"),
        ("Flodl @ git+https://example.org/flodl\r\n", "Flodl[hf] @ git+https://example.org/flodl\r\n"),
        ("flodl-extra==1\n", f"flodl-extra==1\nflodl[hf]>={flodl.__version__}\n"),
        ("flodl", "flodl[hf]"),
        ("numpy", f"numpy\nflodl[hf]>={flodl.__version__}\n"),
    ],
)
def test_the_line_of_flodl_in_requirements_gets_the_extra(project, before, after, capsys):
    folder = project({"fdl.yml": "description: x"})
    path = folder / "requirements.txt"
    path.write_bytes(before.encode())
    assert main(["add", "hf"]) == 0
    assert path.read_bytes().decode() == after
    assert f"Added hf (models of the Hugging Face hub) to {path}." in capsys.readouterr().out
    assert main(["add", "hf"]) == 0
    assert path.read_bytes().decode() == after
    assert "has the extra hf already" in capsys.readouterr().out


def test_without_any_file_requirements_are_created(project):
    folder = project({"fdl.yml": "description: x"})
    assert main(["add", "zstd"]) == 0
    assert (folder / "requirements.txt").read_text() == f"flodl[zstd]>={flodl.__version__}\n"


def test_the_dependencies_of_pyproject_get_the_extra(project):
    text = '[project]\nname = "x"\nversion = "1"\ndependencies = ["torch", "flodl >=0.1"]  # ours\n'
    folder = project({"pyproject.toml": text, "requirements.txt": "numpy\n"})
    assert main(["add", "hf"]) == 0
    assert (folder / "pyproject.toml").read_text() == text.replace('"flodl >=', '"flodl[hf] >=')
    assert (folder / "requirements.txt").read_text() == "numpy\n"


def test_a_pyproject_without_flodl_is_not_changed(project, capsys):
    folder = project({"pyproject.toml": '[project]\nname = "x"\nversion = "1"\ndependencies = ["torch"]\n'})
    assert main(["add", "hf"]) == 1
    assert f'"flodl[hf]>={flodl.__version__}"' in capsys.readouterr().err
    assert not (folder / "requirements.txt").exists()


def test_an_invalid_pyproject_is_reported(project, capsys):
    project({"pyproject.toml": "[project\n"})
    assert main(["add", "hf"]) == 1
    assert "is not valid TOML" in capsys.readouterr().err


def test_a_dry_run_writes_nothing(project, capsys):
    folder = project({"requirements.txt": "flodl\n"})
    assert main(["add", "hf", "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"path": str(folder / "requirements.txt"), "changed": True, "written": False}
    assert (folder / "requirements.txt").read_text() == "flodl\n"


def test_an_unknown_extra_is_named_with_a_suggestion(project, capsys):
    project({})
    assert main(["add", "hff"]) == 1
    assert "flodl has no extra 'hff'. Did you mean 'hf'?" in capsys.readouterr().err


MANIFEST = """\
# The commands of this project
commands:
    run:   {run: "echo 'x'"}   # ours

    # Below: the tests
    check:
        description: >
            Run
            everything
        run: |
            python -m pytest
            echo done

# The end
description: 'mine'
"""


def test_a_playground_is_written_and_linked_without_touching_the_rest(project, capsys):
    folder = project({"requirements.txt": "flodl\n"})
    (folder / "fdl.yml").write_text(MANIFEST)
    (folder / "fdl.yml.example").write_text("commands:\n  run: {run: echo}")
    assert main(["add", "hf", "--playground"]) == 0
    added = (folder / "fdl.yml").read_text()
    assert added == MANIFEST.replace("            echo done\n", "            echo done\n    flodl-hf:\n")
    assert (folder / "fdl.yml.example").read_text() == "commands:\n  run: {run: echo}\n  flodl-hf:\n"
    written = {path.name for path in (folder / "flodl-hf").iterdir()}
    assert written == {"classify.py", "fdl.yml", "README.md", ".gitignore"}
    shown = capsys.readouterr().out
    assert f"Added the command flodl-hf to {folder}/fdl.yml." in shown
    assert main(["config", "lint"]) == 0


def test_a_second_playground_changes_nothing(project, capsys):
    folder = project({"fdl.yml": "commands: {run: {run: echo}}"})
    assert main(["add", "hf", "--playground"]) == 0
    (folder / "flodl-hf/classify.py").write_text("mine")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["add", "flodl-hf", "--playground"]) == 0
    assert "flodl-hf exists already and is left unchanged" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_dry_run_of_a_playground_writes_nothing(project, capsys):
    folder = project({"fdl.yml": "commands:\n"})
    assert main(["add", "hf", "--playground", "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["created"], found["written"]) == (True, False)
    assert found["manifests"] == [str(folder / "fdl.yml")]
    assert [path.name for path in folder.iterdir()] == ["fdl.yml"]


def test_a_playground_needs_a_project_and_an_extra_that_has_one(project, capsys):
    folder = project({})
    assert main(["add", "hf", "--playground"]) == 1
    assert "fdl init NAME" in capsys.readouterr().err
    (folder / "fdl.yml").write_text("description: x\n")
    assert main(["add", "zstd", "--playground"]) == 1
    assert "the extra 'zstd' has no playground" in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == ["fdl.yml"]


@pytest.mark.slow
def test_the_playground_runs_without_a_network(project, capfd, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    project({"fdl.yml": "commands:\n"})
    main(["add", "hf", "--playground"])
    for arguments in ([], ["--", "a fine film"]):  # the second run loads the model of the first
        assert main(["flodl-hf", *arguments]) == 0
    assert "a fine film" in capfd.readouterr().out
