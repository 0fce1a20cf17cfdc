"""Workers: they survive signals to the program, and end with it or on its request."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from flodl.core import DataError
from flodl.data import Loader

pytestmark = pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="nobody says who sent a signal")


class Processes:
    """Samples that contain the id of the process that created them."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.tensor(os.getpid())


PROGRAM = """
import os, time, torch
from flodl.data import Loader

class Slow:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index > 3:
            time.sleep(600)
        return torch.tensor(os.getpid())

batches = iter(Loader(Slow(), 2, shuffle=False, num_workers=2))
print(*{int(pid) for pid in (*next(batches), *next(batches))}, flush=True)
raise ValueError("the program ends")
"""


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for_end(pids):
    for _ in range(1000):
        if not any(map(is_running, pids)):
            return
        time.sleep(0.01)
    pytest.fail(f"some of {pids} still run")


@pytest.mark.parametrize("name", ["TERM", "INT", "USR1"])
def test_workers_survive_a_signal_to_every_process_of_a_job(name):
    # From here on torch starts a thread in every forked process.
    torch.set_num_threads(torch.get_num_threads())
    given = Loader(Processes(), 2, num_workers=2)
    batches = iter(given)
    pids = {int(pid) for _ in range(2) for pid in next(batches)}
    assert len(pids) == 2
    # By another process, as a job manager does; the workers know their parent.
    subprocess.run(["kill", f"-{name}", *map(str, pids)], check=True)
    rest = list(batches)
    assert len(rest) == 30
    assert {int(pid) for batch in rest for pid in batch} == pids
    del batches
    given.close()
    wait_for_end(pids)


def test_the_parent_can_end_a_worker_with_a_signal():
    given = Loader(Processes(), 2, num_workers=1)
    batches = iter(given)
    (pid,) = {int(pid) for pid in next(batches)}
    (worker,) = (child for child in multiprocessing.active_children() if child.pid == pid)
    worker.terminate()
    worker.join()
    assert not is_running(pid)
    assert worker.exitcode == 0
    del batches, worker
    given.close()


@pytest.mark.slow
def test_no_worker_outlives_a_program_that_ends_in_the_middle_of_an_epoch():
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.endswith("ValueError: the program ends\n")
    wait_for_end([int(pid) for pid in ended.stdout.split()])


UNGUARDED = """
import multiprocessing
import torch
from flodl import Loader

class Ones(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, number):
        return torch.ones(2)

multiprocessing.set_start_method("spawn", force=True)
list(Loader(Ones(), 2, num_workers=1))
"""


@pytest.mark.slow
def test_with_spawn_a_script_without_a_main_guard_gets_advice(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED)
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True)
    told = ended.stderr.splitlines()[-1]
    assert "a worker of the loader died: process" in told
    assert "started with 'spawn' here" in told
    assert 'under `if __name__ == "__main__":`. It may' in told


class Ending:
    def __len__(self):
        return 8

    def __getitem__(self, number):
        if number == 5:
            raise StopIteration
        return torch.ones(2)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_sample_that_raises_stop_iteration_is_named(num_workers):
    loader = Loader(Ending(), 2, shuffle=False, num_workers=num_workers)
    with pytest.raises(DataError, match=r"Ending raised StopIteration while .* samples \[4, 5\]"):
        list(loader)
    loader.close()
