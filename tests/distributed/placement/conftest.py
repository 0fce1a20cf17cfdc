"""Programs with ranks, and what their run logs must show."""

import importlib.util
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flodl.distributed.supervisor import read_log

SCRIPT = Path(__file__).with_name("counting_script.py")


class Program:
    """The counting script with its options, and the logs that it wrote."""

    def __init__(self, folder):
        self.folder = folder

    def words(self, **options):
        return [str(SCRIPT), str(self.folder), json.dumps(options)]

    @property
    def logs(self):
        """The records of each run, from the first to the last."""
        return [read_log(path) for path in sorted(self.folder.glob("run-*.jsonl"))]

    def records(self, kind):
        return [record for log in self.logs for record in log if record["kind"] == kind]

    def wait_for(self, condition, process, *, timeout_s=120.0):
        """Wait until the logs show something; the program has to run meanwhile."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert process.poll() is None, f"the program ended with {process.returncode}"
            assert time.monotonic() < deadline, "nothing happened"
            time.sleep(0.05)

    def wait_for_text(self, name, text, *, timeout_s=120.0):
        """Wait until a file contains a text."""
        path, deadline = self.folder / name, time.monotonic() + timeout_s
        while not (path.exists() and text in path.read_text()):
            assert time.monotonic() < deadline, f"{text!r} is not in {name}"
            time.sleep(0.05)

    def check(self, *, num_samples):
        """Each position was committed exactly once, replicas were identical, and the save has the result."""
        logs, commits = self.logs, []
        for log, following in zip(logs, [*logs[1:], []]):
            later = [record["version"] for record in following if record["kind"] == "commit"]
            # What was committed after the save from which the next run started is trained again.
            limit = min(later) if later else float("inf")
            commits += [each for each in log if each["kind"] == "commit" and each["version"] < limit]
        ranges = [each for commit in commits for *_, found in commit["work"] for each in found]
        positions = sorted(position for start, stop in ranges for position in range(start, stop))
        assert positions == list(range(num_samples))
        for log in logs:
            digests = {}
            for record in log:
                if record["kind"] == "adopted":
                    digests.setdefault(record["version"], set()).add(record["digest"])
            assert all(len(found) == 1 for found in digests.values())
        saved = json.loads((self.folder / "save.json").read_text())
        expected = expected_weights(commits, num_samples)
        assert saved["weights"] == pytest.approx(expected, abs=1e-3)


def expected_weights(commits, num_samples):
    """The consensus that follows from the committed work."""
    weights = [0.0] * num_samples
    for commit in commits:
        steps = {}
        for rank, _, batches, _ in commit["work"]:
            steps[rank] = steps.get(rank, 0) + batches
        for rank, _, _, ranges in commit["work"]:
            for start, stop in ranges:
                for position in range(start, stop):
                    weights[position] += steps[rank] / commit["batches"]
    return weights


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path)


@pytest.fixture(scope="session")
def torchrun():
    return [sys.executable, "-m", "torch.distributed.run"]


@pytest.fixture(scope="session")
def ray_command():
    """The program `ray`, with this Python; tests that need it are skipped without Ray."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'flodl[ray]'")
    return [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]


@pytest.fixture(scope="session")
def ray_cluster(ray_command, tmp_path_factory):
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
