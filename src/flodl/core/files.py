"""Where a file is, and writing it so that it is whole or not there."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def at_home(path: str | os.PathLike[str]) -> Path:
    """Give a path with the home of the user in the place of `~`.

    >>> at_home("~/runs") == Path.home() / "runs"
    True
    """
    return Path(os.path.expanduser(path))


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary sibling to write to; it takes the place of `path` when the block ends well.

    The content is flushed to the disk before the rename, so readers see the old file or the new one,
    never half of it, also after a power cut. When the block raises, the old file stays. A file that is
    replaced keeps its permissions. A link stays a link, and what it leads to is replaced; a pipe or a device
    is written to.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        with _through(target) as temporary:
            yield temporary
        return
    if target.is_symlink():
        target = Path(os.path.realpath(target))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        # The name of a temporary file would tell the user nothing.
        raise type(error)(error.errno, error.strerror, str(target)) from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _flush(temporary)
        os.chmod(temporary, _mode_for(target))
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":
        _flush(target.parent)


@contextmanager
def _through(target: Path) -> Iterator[Path]:
    """Give a file to write to, whose content then goes to a pipe or a device, which cannot be replaced."""
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder) / "content"
        temporary.touch()
        yield temporary
        with temporary.open("rb") as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink)


def write_atomic(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write a whole file at once: old or new, never half.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomic(Path(folder) / "note.txt", "hello").read_text()
    'hello'
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    return Path(path)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _mode_for(target: Path) -> int:
    """Give the permissions of the file that is there, else those of any new one."""
    try:
        return stat.S_IMODE(target.stat().st_mode)
    except FileNotFoundError:
        return 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
