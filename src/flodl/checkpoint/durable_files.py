"""Files and folders that have reached the disk, not only its cache."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from flodl.core import lock

_MOST_WRITE_BYTES = 1 << 30


class DiskFile(io.RawIOBase):
    """A new or emptied file to write to; nothing is held back in a buffer."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._handle = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o666
        )

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        written = 0
        while written < len(view):
            written += os.write(self._handle, view[written : written + _MOST_WRITE_BYTES])
        return written

    def sync(self) -> None:
        """Wait until everything written so far is on the disk."""
        os.fsync(self._handle)

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._handle)


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Wait until the names in a folder are on the disk."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def hidden(folder: Path, kind: Literal["part", "gone"]) -> Path:
    """Name a hidden neighbour of a folder, for one that is not yet or no longer there."""
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.{kind}")


def is_hidden(name: str) -> bool:
    """Say whether a name is one that `hidden` gave."""
    return name.startswith(".step-") and name.endswith((".part", ".gone"))


def discard(folder: Path) -> None:
    """Remove a folder so that no moment shows half of it: give it another name, then delete.

    Of a link to a folder elsewhere only the link goes.
    """
    if folder.is_symlink():
        folder.unlink()
        return
    gone = hidden(folder, "gone")
    os.rename(folder, gone)
    sync_folder(folder.parent)
    shutil.rmtree(gone)


@contextlib.contextmanager
def shared_lock(folder: Path) -> Iterator[None]:
    """Say to others that work goes on in a folder; the system takes the lock back if we die."""
    with _lock(folder, exclusive=False):
        yield


@contextlib.contextmanager
def sole_lock(folder: Path) -> Iterator[bool]:
    """Say whether nobody else works in a folder, and keep it so during the block."""
    with _lock(folder, exclusive=True) as held:
        yield held


@contextlib.contextmanager
def _lock(folder: Path, *, exclusive: bool) -> Iterator[bool]:
    if not lock.SUPPORTED:
        yield True
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            held = lock.acquire(handle, shared=not exclusive, wait=not exclusive)
        except OSError:  # a file system without locks
            held = False
        yield held
    finally:
        # A process that was forked meanwhile has the handle too, and would keep the lock alive by it.
        lock.release(handle)
        os.close(handle)
