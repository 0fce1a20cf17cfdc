"""The status of a run: empty, running, killed or ended."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from flodl.core import lock
from flodl.monitor import Event, Journal, Monitor, read
from flodl.monitor.exports import save_html
from flodl.monitor.snapshot import snapshot, status

TRAINING = """
import sys, time
from flodl.monitor import Monitor
monitor = Monitor(1000, sys.argv[1], console=False, resources=False, step_rate=None)
for step in range(10**6):
    monitor.log_step(step, {"loss": 1.0 / (step + 1)}, epoch=step // 50)
    if step % 50 == 49:
        monitor.log(step // 50, {"loss": 1.0 / (step + 1)})
    print(step, time.time(), flush=True)
    time.sleep(0.002)
"""


def last_step(folder):
    lines = snapshot(folder)["metrics"] if (folder / "journal.jsonl").is_file() else {}
    return lines["loss"]["x"][-1] if "loss" in lines else -1


def test_an_old_journal_without_a_run_is_empty_and_not_running(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.touch()
    os.utime(path, (1.0, 1.0))
    assert snapshot(tmp_path)["status"]["state"] == "empty"


def test_the_duration_of_a_run_does_not_depend_on_the_wall_clock(tmp_path):
    with Journal.open(tmp_path) as journal:
        journal.write(Event("run_start", {"name": "jump"}, time_s=0.0))
        journal.write(Event("run_end", {"status": "finished", "duration_s": 7.5}, time_s=2.6e6))
    assert snapshot(tmp_path)["status"]["elapsed_s"] == 7.5


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize("num_bytes", [10, 5000, 60_000])
def test_the_last_event_is_found_however_long_its_line_is(tmp_path, num_bytes):
    with Journal.open(tmp_path) as journal:
        journal.write(Event("run_start", {"name": "long"}, time_s=1.0))
        journal.write(Event("alert", {"message": "x" * num_bytes}, time_s=8.0))
    assert status(tmp_path)["last_s"] == 8.0


def test_after_kill_9_everything_up_to_the_last_second_is_shown(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINING, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    seen = next(int(line.split()[0]) for line in process.stdout if int(line.split()[0]) > 200)
    while last_step(tmp_path) < seen:  # the process writes to disk without being asked
        process.stdout.readline()
    assert snapshot(tmp_path)["status"]["state"] == "running"
    process.send_signal(signal.SIGKILL)
    killed_s = time.time()
    process.communicate()

    state = snapshot(tmp_path, max_points=10**7)
    assert state["status"]["state"] == "lost"
    steps = state["metrics"]["loss"]["x"]
    entries = list(read(tmp_path))
    started_s = next(entry.event.time_s for entry in entries if entry.event.kind == "run_start")
    took_s = entries[-1].event.time_s - started_s  # a garbage collection may be recorded before the start
    os.utime(tmp_path / "journal.jsonl", (killed_s + 1e6, killed_s + 1e6))  # as in a copy of the file
    assert snapshot(tmp_path)["status"]["elapsed_s"] == status(tmp_path)["elapsed_s"] == took_s
    assert snapshot(tmp_path)["status"]["last_s"] == entries[-1].event.time_s
    assert steps[-1] >= seen
    # Less than a second unless the machine is overloaded.
    assert killed_s - entries[-1].event.time_s < 15.0
    assert steps == list(range(len(steps)))
    assert [record["epoch"] for record in state["history"]] == list(range(1, len(state["history"]) + 1))
    assert len(state["history"]) >= 4
    assert [entry.id for entry in entries] == list(range(1, len(entries) + 1))
    assert save_html(tmp_path / "run.html", [tmp_path]).stat().st_size > 50_000


@pytest.mark.skipif(os.name != "posix", reason="needs file locks")
def test_a_truncated_run_of_a_process_that_does_something_else_now_is_no_longer_running(tmp_path):
    with Monitor(2, tmp_path, console=False, resources=False) as monitor:
        monitor.log(0, {"loss": 1.0})
        assert status(tmp_path)["state"] == "running"
    journal = tmp_path / "journal.jsonl"
    content = journal.read_bytes()
    journal.write_bytes(content[: content.rindex(b'"run_end"')])
    assert status(tmp_path)["state"] == "lost"


@pytest.mark.skipif(os.name != "posix", reason="needs file locks")
def test_a_run_can_start_while_others_look_at_its_journal(tmp_path):
    with Monitor(1, tmp_path, console=False, resources=False) as monitor:
        monitor.log(0, {"loss": 1.0})
    with open(tmp_path / "journal.jsonl", "rb") as looking:
        assert lock.acquire(looking.fileno(), shared=True, wait=False)
        timer = threading.Timer(0.015, lambda: lock.release(looking.fileno()))
        timer.start()
        Monitor(2, tmp_path, console=False, resources=False).close()
        timer.join()
