"""Files and folders that are flushed to disk, and locks on a folder."""

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
from flodl.core.files import sync_path

_MAX_WRITE_BYTES = 1 << 30


class DiskFile(io.RawIOBase):
    """A new or truncated file, opened for unbuffered writing."""

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
            written += os.write(self._handle, view[written : written + _MAX_WRITE_BYTES])
        return written

    def sync(self) -> None:
        """Wait until everything written so far is on disk."""
        os.fsync(self._handle)

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._handle)


def hidden_sibling(folder: Path, kind: Literal["part", "gone"]) -> Path:
    """Return a hidden path next to a folder, for its contents before the save or during deletion."""
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.{kind}")


def is_hidden_sibling(name: str) -> bool:
    """Return whether a name was made by `hidden_sibling`."""
    return name.startswith(".step-") and name.endswith((".part", ".gone"))


def delete_folder(folder: Path) -> None:
    """Rename a folder to a hidden name, then delete it, so that it is never seen half deleted.

    If it is a symbolic link, only the link is deleted.
    """
    if folder.is_symlink():
        folder.unlink()
        return
    gone = hidden_sibling(folder, "gone")
    os.rename(folder, gone)
    sync_path(folder.parent)
    shutil.rmtree(gone)


@contextlib.contextmanager
def shared_lock(folder: Path) -> Iterator[None]:
    """Mark a folder as in use; the system releases the lock if the process dies."""
    with _lock(folder, exclusive=False):
        yield


@contextlib.contextmanager
def exclusive_lock(folder: Path) -> Iterator[bool]:
    """Yield whether no other process uses the folder, and keep others out during the block."""
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
