"""Expanding paths, reading files with a limit and writing them atomically."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def expand_user(path: str | os.PathLike[str]) -> Path:
    """Return a path with `~` replaced by the user's home folder.

    >>> expand_user("~/runs") == Path.home() / "runs"
    True
    """
    return Path(os.path.expanduser(path))


def read_limited(path: str | os.PathLike[str], *, max_bytes: int) -> bytes:
    """Read a regular file of at most `max_bytes`; raise `OSError` for a larger one, a pipe or a device.

    Reading a pipe may wait forever, and a device may never end.

    >>> read_limited("/dev/zero", max_bytes=100)
    Traceback (most recent call last):
    OSError: [Errno 22] it is not a regular file: '/dev/zero'
    """
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes} bytes", os.fspath(path))
    return content


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading; raise `OSError` for a pipe, a socket, a device or a folder."""
    _check_regular(os.stat(path).st_mode, path)
    # A pipe may have taken its place in the meantime: opening it must not wait for a writer.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    file = os.fdopen(handle, "rb")
    try:
        _check_regular(os.fstat(handle).st_mode, path)
    except OSError:
        file.close()
        raise
    return file


def _check_regular(mode: int, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))


@contextmanager
def replace_atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary file in the same folder; it replaces `path` if the block does not raise.

    The content is flushed to disk before the rename, so readers see either the old or the new file, never a
    partial one, even after a power cut. A replaced file keeps its permissions. The target of a symbolic link
    is replaced, and the link stays. A pipe or a device is written to directly. `~` is the user's home folder.
    """
    target = expand_user(path)
    if target.exists() and not target.is_file():
        with _write_through(target) as temporary:
            yield temporary
        return
    if target.is_symlink():
        target = Path(os.path.realpath(target))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        # The name of the temporary file would mean nothing to the user.
        raise type(error)(error.errno, error.strerror, str(target)) from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        sync_path(temporary)
        os.chmod(temporary, _mode_for(target))
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":
        sync_path(target.parent)


@contextmanager
def _write_through(target: Path) -> Iterator[Path]:
    """Yield a temporary file and copy it to a pipe or a device, which cannot be replaced."""
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder) / "content"
        temporary.touch()
        yield temporary
        with temporary.open("rb") as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink)


def write_atomic(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write a file so that readers see either the old or the new content, never a part of it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomic(Path(folder) / "note.txt", "hello").read_text()
    'hello'
    """
    with replace_atomic(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    return expand_user(path)


def sync_path(path: str | os.PathLike[str]) -> None:
    """Wait until a file, or the entries of a folder, are on disk."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _mode_for(target: Path) -> int:
    """Return the permissions of the existing file, or the default ones for a new file."""
    try:
        return stat.S_IMODE(target.stat().st_mode)
    except FileNotFoundError:
        return 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
