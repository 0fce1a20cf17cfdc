"""Whether the process that writes a journal is alive: ended, zombie, reused pid, another host."""

import os
import socket
import subprocess
import sys
import time

import psutil
import pytest

from flodl.monitor.snapshot.process import is_alive


def facts(pid, host=None):
    return {"pid": pid, "host": host or socket.gethostname()}


def test_this_process_is_alive():
    assert is_alive(facts(os.getpid()), started_s=time.time(), last_s=0.0)


def test_a_process_that_has_ended_is_not_alive():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not is_alive(facts(ended.pid), started_s=time.time(), last_s=time.time())


@pytest.mark.skipif(os.name != "posix", reason="zombies exist only on POSIX")
def test_a_zombie_is_not_alive():
    killed = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    killed.kill()
    try:
        while psutil.Process(killed.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert not is_alive(facts(killed.pid), started_s=time.time(), last_s=time.time())
    finally:
        killed.communicate()


def test_another_process_with_the_same_pid_is_not_alive():
    long_ago = psutil.Process().create_time() - 3600.0
    assert not is_alive(facts(os.getpid()), started_s=long_ago, last_s=time.time())


@pytest.mark.parametrize("pid", [-1, 2**70])
def test_an_invalid_pid_is_not_alive(pid):
    assert not is_alive(facts(pid), started_s=None, last_s=time.time())


def test_on_another_host_the_time_of_the_last_event_decides():
    other = facts(os.getpid(), host="another-host")
    assert is_alive(other, started_s=0.0, last_s=time.time())
    assert not is_alive(other, started_s=0.0, last_s=time.time() - 3600.0)
