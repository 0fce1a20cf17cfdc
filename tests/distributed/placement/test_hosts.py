"""Several hosts, as network namespaces: one is cut off and one is added during a run."""

import sys

import pytest

from .hosts import make_network

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")]
# Batches are slow until the file "hurry" exists, so that the run is not over too early.
OPTIONS = {"num_samples": 12000, "batch_ms": 15.0, "save_every": 1, "floor_ms": 6000.0}
# Otherwise hosts that come later wait in vain for a store that the others share (torch 2.13).
TORCHRUN = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
# Quicker than by default.
HEALTH = {"initial_delay_ms": "0", "period_ms": "1000", "timeout_ms": "3000", "failure_threshold": "3"}
RAY = {f"RAY_health_check_{name}": value for name, value in HEALTH.items()}


@pytest.fixture
def network():
    found = make_network()
    yield found
    found.close()


def addresses(log):
    return {record["address"] for record in log if record["kind"] == "started"}


def test_torchrun_resumes_when_a_host_is_cut_off_and_another_comes(network, program, torchrun):
    first, second = network.add(), network.add()

    def start(host):
        conf = f"is_host={host is first},last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"
        words = ["--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-backend", "c10d"]
        words += ["--rdzv-endpoint", f"{first.address}:29400", "--rdzv-id", "test", "--rdzv-conf", conf]
        command = [*torchrun, *words, "--local-addr", host.address, *program.words(**OPTIONS)]
        return host.start(command, program.folder / f"{host.name}.txt", **TORCHRUN)

    main = start(first)
    start(second)
    program.wait_for(lambda: len(program.records("saved")) >= 2, main)
    assert addresses(program.logs[0]) == {first.address, second.address}
    second.cut()
    program.wait_for(lambda: program.records("evict") or program.records("lost"), main)
    num_saved = len(program.records("saved"))
    # The survivor continues alone, without a restart.
    program.wait_for(lambda: len(program.records("saved")) > num_saved, main)
    assert len(program.logs) == 1
    third = network.add()
    start(third)
    program.wait_for(lambda: third.address in addresses(program.logs[-1]), main)
    (program.folder / "hurry").touch()
    assert main.wait(100) == 0
    assert addresses(program.logs[-1]) == {first.address, third.address}
    assert "resumed at" in (program.folder / f"{first.name}.txt").read_text()
    program.check(num_samples=OPTIONS["num_samples"])


def test_ray_continues_without_a_restart_when_a_host_is_cut_off_and_another_comes(
    network, program, ray_command
):
    first, second = network.add(), network.add()

    def start_node(host, *words):
        command = [*ray_command, "start", "--block", "--num-cpus=1", "--num-gpus=0", "--disable-usage-stats"]
        command += [f"--node-ip-address={host.address}", "--object-store-memory=100000000", *words]
        return host.start(command, program.folder / f"{host.name}.txt", **RAY)

    start_node(first, "--head", "--port=6379", "--include-dashboard=false")
    start_node(second, f"--address={first.address}:6379")
    program.wait_for_text(f"{first.name}.txt", "Ray runtime started")
    command = [sys.executable, "-m", "flodl", "launch", "--on", "ray", "--ranks", "2:3"]
    command += ["--address", f"{first.address}:6379", *program.words(**OPTIONS)]
    main = first.start(command, program.folder / "launch.txt", **RAY)
    program.wait_for(lambda: len(program.records("saved")) >= 2, main)
    assert addresses(program.logs[0]) == {first.address, second.address}
    second.cut()
    program.wait_for(lambda: program.records("evict") or program.records("lost"), main)
    third = network.add()
    start_node(third, f"--address={first.address}:6379")
    program.wait_for(lambda: len(program.records("joined")) >= 3, main)
    (program.folder / "hurry").touch()
    assert main.wait(100) == 0, (program.folder / "launch.txt").read_text()
    assert len(program.logs) == 1
    assert addresses(program.logs[0]) == {first.address, second.address, third.address}
    program.check(num_samples=OPTIONS["num_samples"])
