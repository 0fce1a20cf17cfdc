"""Ranks that torchrun started on one host."""

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=250, **options)


def test_a_script_runs_below_torchrun_unchanged(program, torchrun):
    done = run([*torchrun, "--standalone", "--nproc-per-node", "2", *program.words()])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["finished 60 torchrun", "ranks [0, 1]"]
    program.check(num_samples=240)
    # The supervisor is a process of its own: a rank never gets beyond the start of training.
    pids = {record["pid"] for record in program.records("started")}
    assert len(pids) == 2
    supervisors = {int(path.name.split("-")[1]) for path in program.folder.glob("supervisor-*")}
    assert len(supervisors - pids) == 1


def test_fdl_launch_runs_the_script_once_and_nothing_listens_beyond_loopback(program):
    command = [sys.executable, "-m", "flodl", "launch", "--on", "torchrun", "--ranks", "2"]
    done = run([*command, *program.words(show_listeners=True)])
    assert done.returncode == 0, done.stderr
    assert "finished 60 torchrun" in done.stdout
    program.check(num_samples=240)
    assert len(list(program.folder.glob("supervisor-*"))) == 1
    addresses = (program.folder / "listeners").read_text().split()
    assert addresses
    assert set(addresses) == {"127.0.0.1"}


def test_after_a_kill_torchrun_restarts_all_ranks_and_the_run_resumes(program, torchrun):
    options = {"num_samples": 1600, "batch_ms": 10.0, "save_every": 1}
    words = [
        *torchrun,
        "--standalone",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "2",
        *program.words(**options),
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    program.wait_for(lambda: len(program.records("saved")) >= 2, process)
    os.kill(program.records("started")[-1]["pid"], signal.SIGKILL)
    out, err = process.communicate(timeout=250)
    assert process.returncode == 0, err
    assert "resumed at" in out
    assert "torchrun has started all ranks again" in err
    assert len(program.logs) == 2
    program.check(num_samples=1600)


def test_an_error_of_the_program_ends_all_ranks_with_its_cause(program, torchrun):
    done = run([*torchrun, "--standalone", "--nproc-per-node", "2", *program.words(fail="worker")])
    assert done.returncode == 1
    assert "ValueError: this worker cannot be created" in done.stderr
