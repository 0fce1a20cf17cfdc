"""One writer for each journal."""

from __future__ import annotations

from flodl.core import lock


def claim(handle: int) -> bool:
    """Take an open file for this process, if nobody has; the claim ends with the file or the process."""
    try:
        return lock.acquire(handle, wait=False)
    except OSError:  # a file system without locks
        return False
