"""Only one run at a time uses a folder, however the run that uses it ends."""

import contextlib
import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch

from flodl import Loader, set_verbosity
from flodl.core import TrainError
from flodl.train.saving.run_folder.lock import DirectoryLock

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs locks of POSIX systems")


@contextlib.contextmanager
def another_run(folder, *, num_workers=0):
    """A run in another process, which pauses after its third step."""
    command = [sys.executable, str(Path(__file__).parent / "held_run.py"), str(folder), str(num_workers)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes) as process:
        assert process.stdout.readline() == "waiting\n"
        yield process
        process.kill()


@pytest.mark.slow
def test_a_second_run_is_rejected_with_the_process_that_uses_the_folder(make, data, tmp_path):
    with another_run(tmp_path) as process:
        before = (tmp_path / "config.json").read_bytes()
        with pytest.raises(TrainError) as caught:
            make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
        assert str(caught.value) == (
            f"process {process.pid} is training in {str(tmp_path)!r}, and two runs would overwrite each "
            f"other's saves. Choose a different checkpoint_dir, or stop it with kill {process.pid}, "
            "which lets it save its state first."
        )
        assert (tmp_path / "config.json").read_bytes() == before
        assert process.communicate("go on\n")[0] == "steps 12\n"
    assert not (tmp_path / "lock").exists()
    with pytest.raises(TrainError, match="belongs to a different model"):  # it can read the folder now
        make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_killed_run_and_its_workers_hold_no_lock(make, data, tmp_path, num_workers):
    with another_run(tmp_path / "run", num_workers=num_workers) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (tmp_path / "run" / "lock").exists()
        # The workers of the dead run check for their parent every five seconds, and may still be running.
        assert make(checkpoint_dir=tmp_path / "run").fit(data, epochs=1, batch_size=8).status == "finished"
    assert not (tmp_path / "run" / "lock").exists()


def test_two_trainers_of_one_process_cannot_use_a_folder_at_the_same_time(make, data, tmp_path):
    refused = []

    def on_epoch_end():
        with pytest.raises(TrainError, match=r"^another trainer of this process is training in .*let it fin"):
            make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
        refused.append(True)

    make(checkpoint_dir=tmp_path, hooks=[on_epoch_end]).fit(data, epochs=1, batch_size=8)
    assert refused
    assert make(checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=8).status == "finished"


def test_an_error_releases_the_folder(make, data, tmp_path):
    def on_step_end():
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        make(checkpoint_dir=tmp_path, hooks=[on_step_end]).fit(data, epochs=1, batch_size=8)
    assert make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8).status == "finished"


def test_workers_that_outlive_the_run_do_not_keep_its_folder_locked(make, tmp_path):
    rows = Loader(list(torch.ones(12, 3)), 4, mode="streaming", num_workers=1)

    def step_fn(model, x):
        return model(x).square().mean()

    make(step_fn=step_fn, checkpoint_dir=tmp_path).fit(rows, epochs=1)
    assert make(step_fn=step_fn, checkpoint_dir=tmp_path).fit(torch.ones(12, 3), epochs=2, batch_size=4)
    rows.close()


def test_a_forked_child_neither_owns_nor_releases_the_folder(tmp_path):
    hold, parent = DirectoryLock(tmp_path), os.getpid()
    child = os.fork()
    if child == 0:
        # Whatever happens, the child must not continue with the tests of its parent.
        code = 9
        try:
            hold.release()
            DirectoryLock(tmp_path)
        except TrainError as error:
            code = 7 if str(error).startswith(f"process {parent} ") else 8
            os.write(2, f"{error}\n".encode())
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    hold.release()
    DirectoryLock(tmp_path).release()


def test_a_lock_without_an_owner_still_rejects_a_second_run(tmp_path):
    with open(tmp_path / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(TrainError, match=r"^another process is training in .* or stop it first\.$"):
            DirectoryLock(tmp_path)


def test_a_worker_that_runs_the_script_again_is_not_advised_to_stop_its_parent(tmp_path):
    with open(tmp_path / "lock", "w") as file:
        file.write(json.dumps({"pid": os.getppid(), "host": socket.gethostname()}))
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(TrainError, match=r"^process \d+ .* has started this process.*__main__") as caught:
            DirectoryLock(tmp_path)
    assert "kill" not in str(caught.value)


def test_an_owner_on_another_machine_is_named_with_its_host(tmp_path):
    with open(tmp_path / "lock", "w") as file:
        file.write('{"pid": 12, "host": "far-away"}')
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(TrainError, match=r"^process 12 on far-away is training in"):
            DirectoryLock(tmp_path)


def test_without_file_locks_other_runs_are_allowed_and_a_debug_line_is_logged(tmp_path, monkeypatch, capsys):
    def no_locks(handle, kind):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    set_verbosity("debug")
    try:
        holds = DirectoryLock(tmp_path), DirectoryLock(tmp_path)
    finally:
        set_verbosity("normal")
    assert (
        capsys.readouterr().err.count("cannot be locked, so other runs are not kept out: No locks available")
        == 2
    )
    for hold in holds:
        hold.release()
