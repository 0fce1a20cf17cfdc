"""`fdl skill`: the porting guide is listed, shown, and written where assistants look for it."""

import json

import pytest

from flodl.cli import main
from flodl.cli.skill import NAME, read_files
from flodl.cli.skill.install import RECORD


@pytest.fixture
def folder(project):
    return project({"fdl.yml": "description: x"})


def written(folder, tool=".claude"):
    skill = folder / tool / "skills" / NAME
    return {
        path.relative_to(skill).as_posix(): path.read_bytes()
        for path in skill.rglob("*")
        if path.is_file() and path.name != RECORD
    }


def test_it_is_written_for_the_assistants_of_the_project(folder, capsys):
    (folder / ".cursorrules").write_text("be brief")
    (folder / "AGENTS.md").write_text("be brief")
    assert main(["skill", "install"]) == 0
    assert written(folder, ".cursor") == written(folder, ".agents") == read_files()
    assert not (folder / ".claude").exists()
    assert "No assistant" not in capsys.readouterr().out


def test_without_an_assistant_it_is_written_for_claude_with_a_note(folder, capsys):
    assert main(["skill", "install"]) == 0
    assert written(folder) == read_files()
    assert "No assistant was found" in capsys.readouterr().out


def test_a_folder_inside_the_project_installs_at_its_root(folder, monkeypatch):
    (folder / "inner").mkdir()
    monkeypatch.chdir(folder / "inner")
    assert main(["skill", "install", "--tool", "claude"]) == 0
    assert written(folder) == read_files()


def test_a_second_installation_writes_nothing(folder, capsys):
    main(["skill", "install", "--to", "skills"])
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    capsys.readouterr()
    assert main(["skill", "install", "--to", "skills"]) == 0
    assert "is up to date" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_changed_file_is_overwritten_only_with_force(folder, capsys):
    (folder / ".agents").mkdir()
    (folder / ".claude").mkdir()
    main(["skill", "install", "--tool", "claude"])
    changed = folder / ".claude/skills" / NAME / "references/loop.md"
    changed.write_text("my notes")
    assert main(["skill", "install"]) == 1
    assert "references/loop.md. Nothing was written" in capsys.readouterr().err
    assert changed.read_text() == "my notes"
    assert written(folder, ".agents") == {}
    assert main(["skill", "install", "--force"]) == 0
    assert written(folder) == written(folder, ".agents") == read_files()


def test_files_of_an_older_flodl_are_updated_and_removed(folder):
    from hashlib import sha256

    skill = folder / "skills" / NAME
    main(["skill", "install", "--to", "skills"])
    record = json.loads((skill / RECORD).read_text())
    for name in ("SKILL.md", "references/gone.md"):
        (skill / name).write_text("older")
        record["files"][name] = sha256(b"older").hexdigest()
    record["files"]["../../fdl.yml"] = sha256((folder / "fdl.yml").read_bytes()).hexdigest()
    (skill / RECORD).write_text(json.dumps(record))
    assert main(["skill", "install", "--to", "skills"]) == 0
    assert (skill / "SKILL.md").read_bytes() == read_files()["SKILL.md"]
    assert not (skill / "references/gone.md").exists()
    assert (folder / "fdl.yml").exists()


def test_dry_run_writes_nothing(folder, capsys):
    assert main(["skill", "install", "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["written"], found["installed"][0]["files"]) == (False, list(read_files()))
    assert sorted(path.name for path in folder.iterdir()) == ["fdl.yml"]


def test_list_reports_the_state_for_each_assistant(folder, capsys):
    (folder / ".cursor").mkdir()
    main(["skill", "install", "--tool", "claude"])
    (folder / ".claude/skills" / NAME / "SKILL.md").write_text("mine")
    capsys.readouterr()
    assert main(["skill", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["skills"][0]["skill"] == NAME
    states = {row["tool"]: (row["detected"], row["state"]) for row in found["tools"]}
    assert states == {
        "claude": (True, "modified"),
        "cursor": (True, "not installed"),
        "agents": (False, "not installed"),
    }


def test_show_prints_a_file_and_suggests_a_misspelled_one(capsys):
    assert main(["skill", "show"]) == 0
    assert capsys.readouterr().out.startswith(f"---\nname: {NAME}\ndescription: ")
    assert main(["skill", "show", "references/lop.md"]) == 1
    assert "references/loop.md" in capsys.readouterr().err


def test_an_unknown_assistant_is_an_error_with_the_choices(folder, capsys):
    assert main(["skill", "install", "--tool", "parrot"]) == 2
    assert "'claude', 'cursor', 'agents'" in capsys.readouterr().err
