"""A run that is killed: everything up to the last second is there, and somebody says that it was killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from flodl.monitor.archive import save_html
from flodl.monitor.journal import read
from flodl.monitor.snapshot import snapshot

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


@pytest.mark.skipif(os.name != "posix", reason="kills a process the POSIX way")
def test_after_kill_9_everything_up_to_the_last_second_is_shown(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINING, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    began = None
    for line in process.stdout:
        step, now = int(line.split()[0]), float(line.split()[1])
        began = began or now
        if now - began > 1.5 and step > 200:
            assert snapshot(tmp_path)["status"]["state"] == "running"
            break
    process.send_signal(signal.SIGKILL)
    killed_s = time.time()
    process.wait()
    process.stdout.close()

    state = snapshot(tmp_path)
    assert state["status"]["state"] == "lost"
    steps = state["metrics"]["loss"]["x"]
    entries = list(read(tmp_path))
    assert killed_s - entries[-1].event.time_s < 1.0
    assert steps == list(range(len(steps)))
    assert [record["epoch"] for record in state["history"]] == list(range(1, len(state["history"]) + 1))
    assert len(state["history"]) >= 4
    assert [entry.id for entry in entries] == list(range(1, len(entries) + 1))
    assert save_html(tmp_path / "run.html", [tmp_path]).stat().st_size > 50_000
