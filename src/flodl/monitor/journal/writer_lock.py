"""The lock that allows only one writer per journal."""

from __future__ import annotations

import os
import time

from flodl.core import lock

_ATTEMPTS = 5  # while `is_unlocked` tries the lock of a journal, it is not free for a moment


def acquire_writer_lock(handle: int) -> bool:
    """Lock an open journal, and return whether that succeeded; the lock ends with the file or the process."""
    try:
        for _ in range(_ATTEMPTS):
            if lock.acquire(handle, wait=False):
                return True
            time.sleep(0.01)
    except OSError:  # a file system without locks
        pass
    return False


def is_unlocked(path: str | os.PathLike[str]) -> bool:
    """Return whether no process of this machine writes a journal; False if that is unknown."""
    if not lock.SUPPORTED:
        return False
    try:
        with open(path, "rb") as file:
            return lock.acquire(file.fileno(), shared=True, wait=False)
    except OSError:
        return False
