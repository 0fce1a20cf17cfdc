"""A run that is killed: everything up to the last second is there, and somebody says that it was killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from flodl.monitor.archive import save_html
from flodl.monitor.journal import read
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


@pytest.mark.skipif(os.name != "posix", reason="kills a process the POSIX way")
def test_after_kill_9_everything_up_to_the_last_second_is_shown(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINING, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    seen = next(int(line.split()[0]) for line in process.stdout if int(line.split()[0]) > 200)
    while last_step(tmp_path) < seen:  # nobody asks the process for it: it writes by itself, soon
        process.stdout.readline()
    assert snapshot(tmp_path)["status"]["state"] == "running"
    process.send_signal(signal.SIGKILL)
    killed_s = time.time()
    process.communicate()

    state = snapshot(tmp_path, most=10**7)
    assert state["status"]["state"] == "lost"
    steps = state["metrics"]["loss"]["x"]
    entries = list(read(tmp_path))
    took_s = entries[-1].event.time_s - entries[0].event.time_s
    os.utime(tmp_path / "journal.jsonl", (killed_s + 1e6, killed_s + 1e6))  # as a copy of it has
    assert snapshot(tmp_path)["status"]["elapsed_s"] == status(tmp_path)["elapsed_s"] == took_s
    assert snapshot(tmp_path)["status"]["last_s"] == entries[-1].event.time_s
    assert steps[-1] >= seen
    # Less than a second on a machine that has time.
    assert killed_s - entries[-1].event.time_s < 15.0
    assert steps == list(range(len(steps)))
    assert [record["epoch"] for record in state["history"]] == list(range(1, len(state["history"]) + 1))
    assert len(state["history"]) >= 4
    assert [entry.id for entry in entries] == list(range(1, len(entries) + 1))
    assert save_html(tmp_path / "run.html", [tmp_path]).stat().st_size > 50_000
