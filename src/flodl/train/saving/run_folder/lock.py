"""The lock that allows one run at a time in a run directory."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path

from flodl.core import TrainError, lock, log
from flodl.monitor import register_after_fork

_MAX_BYTES = 1024


class DirectoryLock:
    """Lock a run directory for this process until `release` or until the process ends.

    On a file system without locks, and on Windows, this has no effect.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._handle: int | None = None
        # A worker that is forked later inherits the handle and would keep the lock.
        register_after_fork(self)
        self._handle = _open_and_lock(self._path)

    def release(self) -> None:
        """Release the lock."""
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            os.close(handle)

    def after_fork_in_child(self) -> None:
        """Close the handle in a forked child: the lock belongs to its parent."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


def _open_and_lock(path: Path) -> int | None:
    """Open and lock a file and write the owner to it; return None where that is not possible."""
    if not lock.SUPPORTED:
        return None
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:  # the first write to the folder reports the reason
            log.debug("%s cannot be opened, so other runs are not kept out: %s", path, error.strerror)
            return None
        try:
            is_ours = lock.acquire(handle, wait=False)
        except OSError as error:
            os.close(handle)
            log.debug("%s cannot be locked, so other runs are not kept out: %s", path, error.strerror)
            return None
        if not is_ours:
            owner = os.pread(handle, _MAX_BYTES, 0)
            os.close(handle)
            raise _in_use(path.parent, owner)
        if _is_same_file(path, handle):
            break
        os.close(handle)  # the previous owner has just deleted it
    with contextlib.suppress(OSError):  # on a full disk the owner stays unknown
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
    return handle


def _is_same_file(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _in_use(folder: Path, owner: bytes) -> TrainError:
    """Return an error that names the owner of the folder and says what to do."""
    try:
        found = json.loads(owner)
        pid, host = int(found["pid"]), str(found["host"])
    except (ValueError, KeyError, TypeError):
        who, how = "another process", "stop it"
    else:
        who, how = f"process {pid}", f"stop it with kill {pid}, which lets it save its state"
        if host != socket.gethostname():
            who = f"{who} on {host}"
        elif pid == os.getpid():
            who, how = "another trainer of this process", "let it finish"
        elif pid == os.getppid():
            return TrainError(
                f"process {pid} is training in {str(folder)!r} and has started this process. If this is a "
                "worker of its loader, it has run the script again: put the code that starts the training "
                'under `if __name__ == "__main__":`. Otherwise choose a different checkpoint_dir.'
            )
    return TrainError(
        f"{who} is training in {str(folder)!r}, and two runs would overwrite each other's saves. "
        f"Choose a different checkpoint_dir, or {how} first."
    )
