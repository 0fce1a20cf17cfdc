"""Real rank processes for tests: `start_ranks(function, 3)` calls a function of a test in each."""

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from flodl.distributed.reduction import host_store

MOST_S = 120.0


class Ranks:
    """Processes that run a function; `store` is what the supervisor of a run would host."""

    def __init__(self, server, folder, function, size, arguments):
        self.store = host_store(timeout_s=30.0)
        self._targets = [folder / f"rank{index}.pt" for index in range(size)]
        request = {
            "file": inspect.getfile(function),
            "function": function.__name__,
            "size": size,
            "ranks": list(range(size)),
            "targets": [str(target) for target in self._targets],
            "port": self.store.port,
            "arguments": arguments,
        }
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        self.pids = json.loads(server.stdout.readline())

    def wait_for(self, key):
        """Wait until a rank has set a key in the store."""
        until = time.monotonic() + MOST_S
        while not self.store.check([key]):
            assert time.monotonic() < until, f"no rank has set {key}"
            time.sleep(0.001)

    def kill(self, index, with_signal=signal.SIGKILL):
        os.kill(self.pids[index], with_signal)

    def result(self, index):
        """Return what the function of a rank returned, or None if its process was killed."""
        until = time.monotonic() + MOST_S
        target = self._targets[index]
        while not target.exists():
            assert time.monotonic() < until, f"rank {index} did not finish"
            if not is_alive(self.pids[index]) and not target.exists():
                return None
            time.sleep(0.002)
        found = torch.load(target, weights_only=False)
        assert "error" not in found, f"rank {index}: {found['error']}"
        return found["value"]

    def results(self):
        return [self.result(index) for index in range(len(self.pids))]

    def end(self):
        for pid in self.pids:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="session")
def rank_server():
    path = Path(__file__).with_name("rank_server.py")
    server = subprocess.Popen(
        [sys.executable, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield server
    server.stdin.close()
    server.wait(timeout=30)
    server.stdout.close()


@pytest.fixture
def start_ranks(rank_server, tmp_path):
    started = []

    def start(function, size=3, **arguments):
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Ranks(rank_server, folder, function, size, arguments))
        return started[-1]

    yield start
    for ranks in started:
        ranks.end()


@pytest.fixture
def run_ranks(start_ranks):
    return lambda function, size=3, **arguments: start_ranks(function, size, **arguments).results()
