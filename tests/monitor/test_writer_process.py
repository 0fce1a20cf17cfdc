"""Whether somebody still writes: dead, not yet buried, another of the same number, on another machine."""

import os
import socket
import subprocess
import sys
import time

import psutil
import pytest

from flodl.monitor.writer_process import is_alive


def facts(pid, host=None):
    return {"pid": pid, "host": host or socket.gethostname()}


def test_this_process_is_alive():
    assert is_alive(facts(os.getpid()), started_s=time.time(), last_s=0.0)


def test_a_process_that_has_ended_is_not():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not is_alive(facts(ended.pid), started_s=time.time(), last_s=time.time())


@pytest.mark.skipif(os.name != "posix", reason="only POSIX keeps the dead in its table")
def test_a_process_that_was_killed_and_that_nobody_has_asked_for_is_not():
    killed = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    killed.kill()
    try:
        while psutil.Process(killed.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert not is_alive(facts(killed.pid), started_s=time.time(), last_s=time.time())
    finally:
        killed.communicate()


def test_another_process_of_the_same_number_is_not():
    long_ago = psutil.Process().create_time() - 3600.0
    assert not is_alive(facts(os.getpid()), started_s=long_ago, last_s=time.time())


@pytest.mark.parametrize("pid", [-1, 2**70])
def test_what_is_no_number_of_a_process_is_not(pid):
    assert not is_alive(facts(pid), started_s=None, last_s=time.time())


def test_of_another_machine_the_last_words_decide():
    other = facts(os.getpid(), host="another machine")
    assert is_alive(other, started_s=0.0, last_s=time.time())
    assert not is_alive(other, started_s=0.0, last_s=time.time() - 3600.0)
