"""The lock that allows only one writer per journal."""

from __future__ import annotations

from flodl.core import lock


def acquire_writer_lock(handle: int) -> bool:
    """Lock an open journal, and return whether that succeeded; the lock ends with the file or the process."""
    try:
        return lock.acquire(handle, wait=False)
    except OSError:  # a file system without locks
        return False
