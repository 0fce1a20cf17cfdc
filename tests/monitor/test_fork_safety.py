"""A forked child has a disabled copy of the monitor; the run belongs to its parent."""

import os
import socket
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from flodl.monitor import Monitor, read, register_after_fork
from flodl.monitor.server import Server

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

PROGRAM = """
import os, sys, time
from pathlib import Path
from flodl.monitor import Monitor

folder = {folder}
with Monitor(3, folder, console={console}, resources=False, step_rate=None) as monitor:
    print(monitor.run_dir)
    sys.stdout.flush()
    monitor.log(0, {{"loss": 0.5}}, duration=1.0)
    monitor.log_step(0, {{"loss": 0.5}})
    child = os.fork()
    if child == 0:
        monitor.log(7, {{"loss": 9.0}})
        monitor.alert("from the child")
        sys.exit(3)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 3
    assert (monitor.run_dir / "journal.jsonl").exists()
    monitor.log(1, {{"loss": 0.25}}, duration=1.0)
"""


def run(folder, *, console=False):
    code = PROGRAM.format(folder=repr(folder), console=console)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_child_that_leaves_the_block_does_not_end_the_run_or_write_to_it(tmp_path):
    shown = run(str(tmp_path), console=True)
    entries = [entry for entry in read(tmp_path) if entry.event.kind != "gc"]
    assert [entry.event.kind for entry in entries] == ["run_start", "epoch", "metrics", "epoch", "run_end"]
    assert [entry.event.data["epoch"] for entry in entries if entry.event.kind == "epoch"] == [0, 1]
    assert entries[-1].event.data["status"] == "finished"
    assert "from the child" not in shown


def test_a_child_does_not_delete_the_temporary_folder_of_its_parent():
    run(None)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python warns about forking with threads
def test_a_child_keeps_neither_the_journal_nor_the_port_open(tmp_path):
    with Monitor(1, tmp_path, console=False, resources=False) as monitor:
        monitor.serve(port=0)
        port = urlsplit(monitor.url).port
        ready, go = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            os._exit(0)
        try:
            os.read(ready[0], 1)
            monitor.close()
            with socket.socket() as free:
                free.bind(("127.0.0.1", port))
            Monitor(1, tmp_path, console=False, resources=False).close()
        finally:
            os.write(go[1], b"x")
            os.waitpid(child, 0)
            for handle in (*ready, *go):
                os.close(handle)


def test_the_copy_of_a_page_that_was_closed_before_the_fork_can_be_disabled():
    server = Server([], port=0)
    server.close()
    server.after_fork_in_child()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_object_that_fails_after_a_fork_leaves_out_no_other(tmp_path):
    class Failing:
        def after_fork_in_child(self):
            raise OSError("this object fails")

    class Remembering:
        is_called = False

        def after_fork_in_child(self):
            self.is_called = True

    objects = [Remembering() if index % 2 else Failing() for index in range(8)]
    for one in objects:
        register_after_fork(one)
    if (child := os.fork()) == 0:
        os._exit(sum(one.is_called for one in objects[1::2]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
