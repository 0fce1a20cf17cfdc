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
