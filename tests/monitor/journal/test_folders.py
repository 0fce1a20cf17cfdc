"""Which folders count as runs."""

from pathlib import Path

from flodl.monitor.journal import find_runs


def make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name / "journal.jsonl"
        path.parent.mkdir(parents=True)
        path.touch()


def test_runs_are_found_by_name_a_few_levels_deep(tmp_path: Path) -> None:
    make(tmp_path, "b", "a/x", "a/deep/y", "a/too/deep/z")
    assert [str(run.relative_to(tmp_path)) for run in find_runs(tmp_path)] == ["a/deep/y", "a/x", "b"]


def test_what_is_inside_a_run_belongs_to_it(tmp_path: Path) -> None:
    make(tmp_path, "run", "run/inner")
    assert find_runs(tmp_path / "run") == [tmp_path / "run"]
    assert find_runs(tmp_path) == [tmp_path / "run"]


def test_hidden_folders_and_links_are_skipped(tmp_path: Path) -> None:
    make(tmp_path, ".trash/run", "runs/one")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert find_runs(tmp_path) == [tmp_path / "runs/one"]
    assert find_runs(tmp_path / "nothing") == []
