"""One writer for each journal."""

from __future__ import annotations


def claim(handle: int) -> bool:
    """Take an open file for this process, if nobody has; the claim ends with the file or the process."""
    try:
        import fcntl
    except ImportError:  # on Windows: two writers are not noticed there
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
