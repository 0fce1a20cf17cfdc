"""A forked process does not inherit a held lock."""

import os

import pytest

from flodl.engine.compile.fork_safe_lock import ForkSafeLock


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_can_take_a_lock_that_is_held() -> None:
    lock = ForkSafeLock()
    with lock.current:
        child = os.fork()
        if child == 0:
            os._exit(0 if lock.current.acquire(timeout=1) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert lock.current.locked()
