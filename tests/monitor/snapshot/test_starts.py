"""Runs that were started more than once: total time, and the state after a start that was refused."""

import socket

import pytest

from flodl.monitor import Event, Journal, Monitor
from flodl.monitor.server import RunSource
from flodl.monitor.snapshot import snapshot, status

DEAD = {"pid": 2**22 + 1, "host": socket.gethostname(), "total_epochs": 3}


def write(folder, *events):
    with Journal.open(folder) as journal:
        for at, (kind, data, *time_s) in enumerate(events):
            journal.write(Event(kind, data, time_s=time_s[0] if time_s else float(at)))
    return folder


def run_start(time_s, **facts):
    return ("run_start", {**DEAD, "name": "digits", **facts}, time_s)


def epoch(number, time_s):
    return ("epoch", {"epoch": number, "metrics": {"loss": 1.0}, "duration_s": 1.0}, time_s)


def run_end(state, duration_s, time_s, **data):
    return ("run_end", {"status": state, "duration_s": duration_s, **data}, time_s)


FINISHED = (
    run_start(0.0, config=[{"path": "lr", "value": 0.1}]),
    epoch(0, 5.0),
    run_end("finished", 10.0, 10.0),
)


def test_elapsed_time_is_the_total_over_all_starts(tmp_path):
    events = [
        *FINISHED,
        run_start(100.0),  # killed after seven seconds
        epoch(1, 107.0),
        run_start(200.0),
        epoch(2, 230.0),
        run_end("stopped", 30.0, 230.0),
    ]
    found = status(write(tmp_path, *events))
    assert (found["elapsed_s"], found["num_starts"], found["state"]) == (47.0, 3, "stopped")


def test_a_start_that_was_killed_counts_until_its_last_step(tmp_path):
    events = [
        run_start(0.0),
        ("metrics", {"step": 1, "metrics": {"loss": 1.0}}, 4.0),
        ("resources", {"cpu_pct": 1.0}, 6.0),
        run_start(100.0),
        ("metrics", {"step": 2, "metrics": {"loss": 1.0}}, 102.0),
    ]
    found = status(write(tmp_path, *events))
    assert (found["state"], found["elapsed_s"]) == ("lost", 8.0)


def test_while_a_run_is_running_the_earlier_starts_are_added(tmp_path):
    write(tmp_path, *FINISHED)
    with Monitor(3, tmp_path, console=False, resources=False) as monitor:
        monitor.log(1, {"loss": 1.0}, duration=0.0)
        found = RunSource(monitor._journal, elapsed_s=lambda: 2.5).status()
        assert (found["state"], found["earlier_s"], found["elapsed_s"]) == ("running", 10.0, 12.5)
        monitor._journal.flush()
        followed = status(tmp_path)
        assert (followed["state"], followed["earlier_s"]) == ("running", 10.0)
        assert "elapsed_s" not in followed


@pytest.mark.parametrize(
    "end", [run_end("failed", 0.01, 100.0, message="TrainError: no"), run_end("stopped", 0.01, 100.0), None]
)
def test_a_start_that_was_refused_leaves_the_run_finished(tmp_path, end):
    refused = run_start(100.0, total_epochs=99, config=[{"path": "lr", "value": 5.0}])
    graph = ("graph", {"label": "digits"}, 100.0)
    state = snapshot(write(tmp_path, *FINISHED, refused, graph, *([end] if end else [])))
    found = state["status"]
    assert (found["state"], found["total_epochs"], found["ended_s"]) == ("finished", 3, 10.0)
    assert found["elapsed_s"] == pytest.approx(10.0, abs=0.02)
    assert [item["value"] for item in state["config"]] == [0.1]
    expected = (end[1]["status"], end[1].get("message")) if end else ("lost", None)
    assert (found["refused"]["state"], found["refused"].get("message")) == expected


def test_a_start_that_trained_before_it_failed_is_shown_as_failed(tmp_path):
    step = ("progress", {"epoch": 1, "step": 1, "num_steps": 9}, 101.0)
    found = status(write(tmp_path, *FINISHED, run_start(100.0), step, run_end("failed", 2.0, 102.0)))
    assert (found["state"], found["elapsed_s"]) == ("failed", 12.0)
    assert "refused" not in found


def test_a_run_whose_only_start_failed_before_it_trained_has_failed(tmp_path):
    found = status(write(tmp_path, run_start(0.0), run_end("failed", 0.5, 1.0, message="no data")))
    assert (found["state"], found["message"], found["elapsed_s"]) == ("failed", "no data", 0.5)


def test_a_resume_with_nothing_left_to_train_is_finished(tmp_path):
    stopped = (run_start(0.0), epoch(0, 5.0), run_end("stopped", 10.0, 10.0))
    found = status(write(tmp_path, *stopped, run_start(100.0), run_end("finished", 1.0, 101.0)))
    assert (found["state"], found["elapsed_s"]) == ("finished", 11.0)
