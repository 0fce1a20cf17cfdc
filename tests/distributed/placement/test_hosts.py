"""Several hosts, as network namespaces: one is cut off and one is added during a run."""

import os
import subprocess
import sys

import pytest

from .hosts import make_network

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")]
OPTIONS = {"num_samples": 6000, "batch_ms": 15.0, "save_every": 1}


@pytest.fixture
def network():
    found = make_network()
    yield found
    found.close()


def hosts_of(log):
    return {record["address"] for record in log if record["kind"] == "started"}


def test_torchrun_resumes_when_a_host_is_cut_off_and_another_comes(network, program, torchrun):
    first, second = network.add(), network.add()
    conf = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"

    def start(host):
        words = ["--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-backend", "c10d"]
        words += [
            "--rdzv-endpoint",
            f"{first.address}:29400",
            "--rdzv-id",
            "test",
            "--rdzv-conf",
            f"is_host={host is first},{conf}",
        ]
        output = (program.folder / f"{host.name}.txt").open("w")
        command = [*torchrun, *words, "--local-addr", host.address, *program.words(**OPTIONS)]
        # Otherwise hosts that come later wait in vain for the store that the others share (torch 2.13).
        variables = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        return host.start(command, stdout=output, stderr=subprocess.STDOUT, env=variables)

    main = start(first)
    start(second)
    program.wait_for(lambda: len(program.records("saved")) >= 2, main)
    assert hosts_of(program.logs[0]) == {first.address, second.address}
    second.cut()
    program.wait_for(lambda: program.records("evict") or program.records("lost"), main)
    num_saved = len(program.records("saved"))
    # The survivor goes on alone, without a restart.
    program.wait_for(lambda: len(program.records("saved")) > num_saved, main)
    assert len(program.logs) == 1
    third = network.add()
    start(third)
    assert main.wait(200) == 0
    assert hosts_of(program.logs[-1]) == {first.address, third.address}
    text = (program.folder / f"{first.name}.txt").read_text()
    assert "resumed at" in text
    program.check(num_samples=OPTIONS["num_samples"])


def test_ray_goes_on_without_a_restart_when_a_host_is_cut_off_and_another_comes(
    network, program, ray_command
):
    """Ranks and the supervisor are actors; Ray's health checks are made quicker than by default."""
    first, second = network.add(), network.add()
    variables = {
        **os.environ,
        "RAY_health_check_initial_delay_ms": "0",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "3000",
        "RAY_health_check_failure_threshold": "3",
    }

    def start_node(host, *words):
        command = [*ray_command, "start", "--block", "--num-cpus=1", "--num-gpus=0", "--disable-usage-stats"]
        command += [f"--node-ip-address={host.address}", "--object-store-memory=100000000", *words]
        output = (program.folder / f"{host.name}.txt").open("w")
        return host.start(command, stdout=output, stderr=subprocess.STDOUT, env=variables)

    head = ["--head", "--port=6379", "--include-dashboard=false"]
    start_node(first, *head)
    start_node(second, f"--address={first.address}:6379")
    output = (program.folder / "launch.txt").open("w")
    command = [sys.executable, "-m", "flodl", "launch", "--on", "ray", "--ranks", "2:3"]
    command += ["--address", f"{first.address}:6379", *program.words(**OPTIONS)]
    main = first.start(command, stdout=output, stderr=subprocess.STDOUT, env=variables)
    program.wait_for(lambda: len(program.records("saved")) >= 2, main)
    assert hosts_of(program.logs[0]) == {first.address, second.address}
    second.cut()
    program.wait_for(lambda: program.records("evict") or program.records("lost"), main)
    third = network.add()
    start_node(third, f"--address={first.address}:6379")
    program.wait_for(lambda: len(program.records("joined")) >= 3, main)
    assert main.wait(200) == 0
    assert len(program.logs) == 1
    assert hosts_of(program.logs[0]) == {first.address, second.address, third.address}
    program.check(num_samples=OPTIONS["num_samples"])
