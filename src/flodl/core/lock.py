"""Advisory file locks, as a thin wrapper over `fcntl.flock`.

`filelock`, which torch installs, does not fit: it opens its files itself (only its newest versions take a
descriptor), while flodl locks folders and journals that are already open, and it has no shared `flock`.

A lock belongs to an open file and ends with it, so a process that dies releases its locks. Windows has no
such locks: there every call succeeds, and nobody is kept out.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SUPPORTED = sys.platform != "win32"

# Some network file systems report a held lock as EACCES.
_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


def acquire(handle: int, *, shared: bool = False, wait: bool = True) -> bool:
    """Lock an open file; return False if another process holds it and `wait` is off.

    Raises OSError where the file system has no locks.
    """
    if sys.platform == "win32":
        return True
    import fcntl

    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(handle, kind if wait else kind | fcntl.LOCK_NB)
    except OSError as error:
        if wait or error.errno not in _HELD:
            raise
        return False
    return True


def release(handle: int) -> None:
    """Unlock an open file. Closing it is not enough while a forked process has the handle too."""
    if sys.platform == "win32":
        return
    import fcntl

    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)


@contextmanager
def exclusive(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the lock of a file during the block, waiting for it first; the file is created if it is missing.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, exclusive(f"{folder}/lock"):
    ...     os.listdir(folder)
    ['lock']
    """
    if not SUPPORTED:
        yield
        return
    with open(path, "w") as file:
        acquire(file.fileno())
        yield
