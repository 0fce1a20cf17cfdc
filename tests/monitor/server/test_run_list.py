"""The runs of a comparison: read quickly, and again only if they change."""

import subprocess
import sys

from flodl.monitor import Event, Journal
from flodl.monitor.server.run_list import RunList

OPENED = """
import sys
from flodl.monitor.server import FollowedRuns
runs = FollowedRuns(sys.argv[1:]).runs.comparison()["runs"]
print(len(runs), runs[0]["metrics"]["loss"]["best"], {"numpy", "torch"} & sys.modules.keys())
"""


def write_run(folder, *, loss, status="finished"):
    with Journal.open(folder) as journal:
        journal.write(Event("run_start", {"name": folder.name}))
        journal.write(Event("epoch", {"epoch": 0, "metrics": {"loss": loss}}))
        journal.write(Event("run_end", {"status": status}))


def test_runs_with_epochs_are_compared_without_numpy_and_torch(tmp_path):
    for name in "ab":
        write_run(tmp_path / name, loss=0.5)
    words = [sys.executable, "-c", OPENED, str(tmp_path / "a"), str(tmp_path / "b")]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "2 0.5 set()\n"


def test_runs_are_compared_again_only_if_one_of_them_changes(tmp_path):
    for name in "ab":
        write_run(tmp_path / name, loss=0.5)
    runs = RunList.of([], folders=[tmp_path])
    first = runs.comparison()
    assert runs.comparison() is first
    write_run(tmp_path / "b", loss=0.25)
    assert [run["metrics"]["loss"]["last"] for run in runs.comparison()["runs"]] == [0.5, 0.25]
    write_run(tmp_path / "c", loss=0.125)
    assert [run["folder"] for run in runs.comparison()["runs"]] == ["a", "b", "c"]
    assert [run["folder"] for run in first["runs"]] == ["a", "b"]
