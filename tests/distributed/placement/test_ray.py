"""Ranks as actors of a Ray cluster on this host."""

import os
import signal
import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def launch(cluster, program, *, ranks, **options):
    command = [sys.executable, "-m", "flodl", "launch", "--on", "ray", "--ranks", ranks, "--address", cluster]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, *program.words(**options)], **pipes)


def test_a_script_runs_on_ray_unchanged(ray_cluster, program):
    process = launch(ray_cluster, program, ranks="2")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert out.splitlines()[:2] == ["finished 60 ray", "ranks [0, 1]"]
    program.check(num_samples=240)


def test_survivors_continue_when_a_rank_is_killed_and_another_takes_its_seat(ray_cluster, program):
    process = launch(ray_cluster, program, ranks="2", num_samples=12000, batch_ms=15.0)
    program.wait_for(lambda: len(program.records("commit")) >= 2, process)
    os.kill(program.records("started")[0]["pid"], signal.SIGKILL)
    program.wait_for(lambda: len(program.records("joined")) == 3, process)
    (program.folder / "hurry").touch()
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    (lost,) = program.records("lost")
    assert lost["reason"] == "its process was killed by SIGKILL"
    assert len(program.logs) == 1
    program.check(num_samples=12000)


def test_an_error_in_the_code_of_ranks_is_reported_and_not_repeated(ray_cluster, program):
    process = launch(ray_cluster, program, ranks="2", fail="worker")
    _, err = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "ValueError: this worker cannot be created" in err
    assert len(program.records("failure")) <= 2


def test_ctrl_c_reaches_the_program_and_ends_all_ranks(ray_cluster, program):
    process = launch(ray_cluster, program, ranks="2", num_samples=12000, batch_ms=15.0)
    program.wait_for(lambda: len(program.records("commit")) >= 2, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=100)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in err


def test_without_a_cluster_the_error_says_how_to_start_one(ray_command, program):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        process = launch(f"127.0.0.1:{probe.getsockname()[1]}", program, ranks="2")
        _, err = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "there is no Ray cluster at 127.0.0.1" in err
    assert "ray start --head" in err
