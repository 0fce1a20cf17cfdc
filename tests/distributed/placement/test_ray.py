"""Ranks as actors of a Ray cluster on this host."""

import os
import signal
import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(ray_command, tmp_path_factory):
    """The address of a cluster with two CPUs."""
    folder = tmp_path_factory.mktemp("ray")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["start", "--head", "--block", f"--port={port}", "--num-cpus=2", "--num-gpus=0"]
    words += ["--node-ip-address=127.0.0.1", "--include-dashboard=false", "--disable-usage-stats"]
    with (folder / "ray.txt").open("w") as output:
        process = subprocess.Popen(
            [*ray_command, *words], stdout=output, stderr=output, start_new_session=True
        )
    try:
        while "Ray runtime started" not in (folder / "ray.txt").read_text():
            assert process.poll() is None, (folder / "ray.txt").read_text()
            try:
                process.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def launch(cluster, program, *, ranks, **options):
    command = [sys.executable, "-m", "flodl", "launch", "--on", "ray", "--ranks", ranks, "--address", cluster]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, *program.words(**options)], **pipes)


def test_a_script_runs_on_ray_unchanged(cluster, program):
    process = launch(cluster, program, ranks="2")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert out.splitlines()[:2] == ["finished 60 ray", "ranks [0, 1]"]
    program.check(num_samples=240)


def test_survivors_go_on_when_a_rank_is_killed_and_another_takes_its_seat(cluster, program):
    process = launch(cluster, program, ranks="2", num_samples=12000, batch_ms=15.0)
    program.wait_for(lambda: len(program.records("commit")) >= 2, process)
    os.kill(program.records("started")[0]["pid"], signal.SIGKILL)
    program.wait_for(lambda: len(program.records("joined")) == 3, process)
    (program.folder / "hurry").touch()
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    (lost,) = program.records("lost")
    assert lost["reason"] == "its process was ended by SIGKILL"
    assert len(program.logs) == 1
    program.check(num_samples=12000)


def test_an_error_in_the_code_of_ranks_is_reported_and_not_repeated(cluster, program):
    process = launch(cluster, program, ranks="2", fail="worker")
    _, err = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "ValueError: this worker cannot be created" in err
    assert len(program.records("failure")) <= 2


def test_ctrl_c_reaches_the_program_and_ends_all_ranks(cluster, program):
    process = launch(cluster, program, ranks="2", num_samples=12000, batch_ms=15.0)
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
