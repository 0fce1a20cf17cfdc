"""One run at a time in one run directory."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path

from flodl.core import TrainError, lock, log
from flodl.monitor import register_after_fork

_MOST_BYTES = 1024


class Hold:
    """A run directory that belongs to this process until `release`; one that dies lets go of it.

    On a file system without locks, and on Windows, nobody is kept out.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._handle: int | None = None
        # A worker that is forked later has the handle too, and would keep the lock alive by it.
        register_after_fork(self)
        self._handle = _locked(self._path)

    def release(self) -> None:
        """Let others have the folder."""
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            os.close(handle)

    def after_fork_in_child(self) -> None:
        """Forget the lock: this is a copy in a forked child, and the run is its parent's."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


def _locked(path: Path) -> int | None:
    """Open and lock a file, and write into it who did; None where that is not possible."""
    if not lock.SUPPORTED:
        return None
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:  # that the folder cannot be written is told by whoever writes to it
            log.debug("%s cannot be opened, so nobody is kept out: %s", path, error.strerror)
            return None
        try:
            is_ours = lock.acquire(handle, wait=False)
        except OSError as error:
            os.close(handle)
            log.debug("%s cannot be locked, so nobody is kept out: %s", path, error.strerror)
            return None
        if not is_ours:
            holder = os.pread(handle, _MOST_BYTES, 0)
            os.close(handle)
            raise _in_use(path.parent, holder)
        if _is_the_file_at(path, handle):
            break
        os.close(handle)  # whoever had it before has just deleted it
    with contextlib.suppress(OSError):  # on a full disk nobody can read who has the folder
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
    return handle


def _is_the_file_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _in_use(folder: Path, holder: bytes) -> TrainError:
    """Say who has the folder, and what to do about it."""
    try:
        found = json.loads(holder)
        pid, host = int(found["pid"]), str(found["host"])
    except (ValueError, KeyError, TypeError):
        who, how = "another process", "stop it"
    else:
        who, how = f"process {pid}", f"stop it with kill {pid}, which lets it save itself"
        if host != socket.gethostname():
            who = f"{who} on {host}"
        elif pid == os.getpid():
            who, how = "another trainer of this process", "let it finish"
        elif pid == os.getppid():
            return TrainError(
                f"process {pid} is training in {str(folder)!r} and has started this one. If this is a worker "
                "of its loader, it has run the script again: put what begins the training under "
                '`if __name__ == "__main__":`. Otherwise choose another checkpoint_dir.'
            )
    return TrainError(
        f"{who} is training in {str(folder)!r}, and two runs would overwrite each other's saves. "
        f"Choose another checkpoint_dir, or {how} first."
    )
