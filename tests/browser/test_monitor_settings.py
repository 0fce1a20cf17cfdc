"""Settings on the page: all differences between runs, settings that arrive later, and several starts."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from flodl.monitor import Event, Journal, Monitor
from flodl.monitor.exports import save_html
from flodl.monitor.server import FollowedRuns, Server

SAME = {"batch_size": 32, "data": {"size": 60_000}, "note": "x" * 1000}


def finished(folder: Path, config: dict[str, Any], *, total_epochs: int = 1) -> Path:
    with Monitor(total_epochs, folder, console=False, resources=False) as monitor:
        monitor.describe({**SAME, **config})
        monitor.log(0, {"loss": 0.5}, duration=1.0)
    return folder


def differences(page: Any) -> dict[str, list[str]]:
    rows = page.locator("#config-table tbody tr").all()
    cells = [row.locator("td").all_text_contents() for row in rows]
    return {path: values for path, *values in cells}


@pytest.mark.parametrize(
    ("path", "first", "second"),
    [
        ("optimizer.lr", {"optimizer": {"lr": 0.1}}, {"optimizer": {"lr": 0.10000001}}),
        ("groups.1.lr", {"groups": [{"lr": 1}, {"lr": 2}]}, {"groups": [{"lr": 1}, {"lr": 3}]}),
        ("milestones", {"milestones": [1, 2, 3]}, {"milestones": [1, 2, 4]}),
        ("seed", {"seed": 2**60}, {"seed": 2**60 + 1}),
        ("mode", {"mode": 1}, {"mode": "1"}),
        ("limit", {"limit": float("nan")}, {"limit": None}),
        ("only", {"only": 1}, {}),
    ],
)
def test_runs_never_compare_as_equal_if_a_setting_differs(
    visit: Any, tmp_path: Path, path: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    runs = [finished(tmp_path / "a", first), finished(tmp_path / "b", second)]
    seen = visit(save_html(tmp_path / "both.html", runs).as_uri())
    found = differences(seen.page)
    assert list(found) == [path]
    assert found[path][0] != found[path][1]
    assert (seen.page.locator("#config-aside").text_content() or "").startswith("1 of ")
    assert seen.messages == []


def test_long_values_and_the_length_of_runs_show_where_they_differ(visit: Any, tmp_path: Path) -> None:
    text = "a" * 2000
    runs = [
        finished(tmp_path / "a", {"prompt": f"{text}left{text}"}),
        finished(tmp_path / "b", {"prompt": f"{text}right{text}"}, total_epochs=2),
    ]
    with Server(FollowedRuns(runs).runs, port=0) as server:
        found = differences(visit(server.url).page)
    assert found["epochs"] == ["1", "2"]
    left, right = found["prompt"]
    assert "left" in left
    assert "right" in right
    assert len(left) < 300


def test_settings_that_become_known_later_appear_on_the_page(visit: Any, monitor: Monitor) -> None:
    seen = visit(monitor.url)
    assert seen.page.locator("#config").is_hidden()
    monitor.describe({"optimizer": {"lr": 0.25}}, origins={"optimizer.lr": "fdl.yml:3"})
    cells = seen.page.locator("#config-table td")
    cells.first.wait_for()
    assert cells.all_text_contents() == ["optimizer.lr", "0.25", "fdl.yml:3"]
    assert seen.messages == []


def test_a_refused_start_leaves_the_page_of_a_finished_run_as_it_was(visit: Any, tmp_path: Path) -> None:
    facts = {"name": "digits", "total_epochs": 2, "pid": 2**22 + 1, "host": socket.gethostname()}
    with Journal.open(tmp_path / "run") as journal:
        for start_s in (0.0, 1000.0):
            journal.write(Event("run_start", facts, time_s=start_s))
            data = {"epoch": int(start_s > 0), "metrics": {"loss": 0.5}, "duration_s": 60.0}
            journal.write(Event("epoch", data, time_s=start_s + 60.0))
            journal.write(Event("run_end", {"status": "finished", "duration_s": 60.0}, time_s=start_s + 60.0))
        journal.write(Event("run_start", facts, time_s=5000.0))
        refused = {"status": "failed", "message": "TrainError: other settings", "duration_s": 0.0}
        journal.write(Event("run_end", refused, time_s=5000.0))
    seen = visit(save_html(tmp_path / "run.html", [tmp_path / "run"]).as_uri())
    assert (seen.page.locator("#subtitle").text_content() or "").startswith("finished")
    assert "2m 00s" in (seen.page.locator("#stats").text_content() or "")
    notice = seen.page.locator("#notice").text_content() or ""
    assert notice.startswith("A later start (")
    assert notice.endswith("ended before it trained: TrainError: other settings")
    assert seen.messages == []
