"""Bytes to read from: a mapped file, memory, or something compressed, told apart by content.

Nothing is ever allocated because a file claims to be large: memory grows with the bytes that really come.
"""

from __future__ import annotations

import gzip
import io
import mmap
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from flodl.core import CheckpointError, DamagedError

from .compression import GZIP_MAGIC, ZSTD_MAGIC, check_zstd_end, is_zstd_error, unpack_zstd

PathOrStream = str | os.PathLike[str] | BinaryIO

_CHUNK_BYTES = 1 << 20


class Supply(Protocol):
    """Bytes in order: `take` gives the next ones or raises ValueError where there are fewer."""

    @property
    def starts_with(self) -> bytes:
        """The first bytes, to tell layouts apart."""

    def take(self, count: int) -> memoryview: ...

    def end(self) -> None:
        """Raise ValueError when something is left."""


class Whole:
    """Bytes that lie in memory or in a mapped file; taking them copies nothing."""

    def __init__(self, buffer: bytes | mmap.mmap) -> None:
        self._view = memoryview(buffer)
        self._position = 0
        self.starts_with = bytes(self._view[:8])

    @property
    def view(self) -> memoryview:
        return self._view

    def take(self, count: int) -> memoryview:
        left = len(self._view) - self._position
        if count > left:
            raise ValueError(f"{count} bytes should follow, {left} are left")
        self._position += count
        return self._view[self._position - count : self._position]

    def end(self) -> None:
        if self._position != len(self._view):
            raise ValueError(f"{len(self._view) - self._position} bytes too many at its end")


class Unpacked:
    """Bytes that come out of a decompressor, no more of them than are asked for."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.starts_with = stream.read(8)
        self._ahead = self.starts_with

    def take(self, count: int) -> memoryview:
        taken = bytearray(self._ahead[:count])
        self._ahead = self._ahead[len(taken) :]
        while len(taken) < count:
            more = self._stream.read(min(_CHUNK_BYTES, count - len(taken)))
            if not more:
                raise ValueError(f"{count} bytes should follow, {len(taken)} are left")
            taken += more
        return memoryview(taken)

    def end(self) -> None:
        if self._ahead or self._stream.read(1):
            raise ValueError("there are bytes too many at its end")


def map_file(path: str | os.PathLike[str]) -> bytes | mmap.mmap:
    """Map a file so that tensors in it may be changed without changing the file."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


@contextmanager
def supplied(source: PathOrStream) -> Iterator[Supply]:
    """Open a path or a stream; what goes wrong inside the block becomes an error of our tree."""
    try:
        buffer = map_file(source) if isinstance(source, str | os.PathLike) else source.read()
        magic = bytes(buffer[:4])
        # A mapped file can be read like a stream, too.
        packed = cast(BinaryIO, io.BytesIO(buffer) if isinstance(buffer, bytes) else buffer)
        if magic.startswith(GZIP_MAGIC):
            yield Unpacked(cast(BinaryIO, gzip.GzipFile(fileobj=packed, mode="rb")))
        elif magic == ZSTD_MAGIC:
            check_zstd_end(buffer)
            yield Unpacked(unpack_zstd(packed))
        else:
            yield Whole(buffer)
    except CheckpointError:
        raise
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise damaged(source, error) from error
    except OSError as error:
        raise CheckpointError(
            f"cannot read {named(source)}: {error.strerror or error}. Give a file that save_checkpoint wrote."
        ) from error
    except Exception as error:
        # A damaged file can make any reader stumble over anything; ours only raise the first of these.
        known = ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError, OverflowError
        if isinstance(error, known) or is_zstd_error(error):
            raise damaged(source, error) from error
        raise


def damaged(source: object, why: object) -> DamagedError:
    """Word the error for a file that is cut off, changed, or something else."""
    return DamagedError(
        f"{named(source)} is not a whole checkpoint: {why}. Take an earlier one; this one was cut off, "
        "changed, or is another kind of file."
    )


def named(place: object) -> str:
    """Name a path or a stream in a message."""
    return repr(str(Path(place))) if isinstance(place, str | os.PathLike) else "the stream"
