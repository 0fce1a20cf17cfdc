"""File locks between processes."""

import errno
import fcntl
import os
import subprocess
import sys
import threading

import pytest

from flodl.core import lock

HOLD = """
import os, sys
from flodl.core import lock
handle = os.open(sys.argv[1], os.O_RDONLY)
assert lock.acquire(handle, shared=sys.argv[2] == "shared")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def opened(tmp_path):
    """Return a function that opens the same file again; every open file locks on its own."""
    handles = []

    def open_again() -> int:
        handles.append(os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT, 0o666))
        return handles[-1]

    yield open_again
    for handle in handles:
        os.close(handle)


def test_an_exclusive_lock_keeps_everybody_else_out_until_it_is_released(opened):
    mine, other = opened(), opened()
    assert lock.acquire(mine)
    assert not lock.acquire(other, wait=False)
    assert not lock.acquire(other, shared=True, wait=False)
    lock.release(mine)
    assert lock.acquire(other, wait=False)


def test_shared_locks_exclude_exclusive_ones_alone(opened):
    mine, other, third = opened(), opened(), opened()
    assert lock.acquire(mine, shared=True)
    assert lock.acquire(other, shared=True, wait=False)
    assert not lock.acquire(third, wait=False)


def test_a_folder_can_be_locked(tmp_path):
    handle, other = os.open(tmp_path, os.O_RDONLY), os.open(tmp_path, os.O_RDONLY)
    assert lock.acquire(handle)
    assert not lock.acquire(other, wait=False)
    os.close(handle)
    assert lock.acquire(other, wait=False)
    os.close(other)


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
def test_a_process_that_dies_releases_its_lock(tmp_path, opened, kind):
    mine = opened()
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lock"), kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        assert not lock.acquire(mine, wait=False)
        holder.kill()
    assert lock.acquire(mine, wait=False)


def test_a_block_waits_for_the_one_that_holds_the_file(tmp_path):
    order, entered = [], threading.Event()

    def second() -> None:
        entered.set()
        with lock.exclusive(tmp_path / "lock"):
            order.append("second")

    with lock.exclusive(tmp_path / "lock"):
        other = threading.Thread(target=second)
        other.start()
        entered.wait()
        other.join(0.1)
        order.append("first")
    other.join()
    assert order == ["first", "second"]


@pytest.mark.parametrize("wait", [True, False])
def test_a_file_system_without_locks_raises(opened, monkeypatch, wait):
    def no_locks(handle, kind):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(OSError, match="No locks available"):
        lock.acquire(opened(), wait=wait)
    lock.release(opened())


def test_on_windows_nobody_is_kept_out(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(lock, "SUPPORTED", False)
    assert lock.acquire(opened())
    assert lock.acquire(opened(), wait=False)
    with lock.exclusive(tmp_path / "none"):
        assert not (tmp_path / "none").exists()
