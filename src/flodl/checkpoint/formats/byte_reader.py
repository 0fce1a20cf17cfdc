"""Readers for the bytes of a checkpoint: a mapped file, memory, or a compressed stream, detected by content.

A size that a file claims is never allocated up front: memory grows only with the bytes actually read.
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

from .compression import GZIP_MAGIC, ZSTD_MAGIC, check_zstd_end, decompress_zstd, is_zstd_error

PathOrStream = str | os.PathLike[str] | BinaryIO

_CHUNK_BYTES = 1 << 20


class ByteReader(Protocol):
    """Reads bytes in order."""

    @property
    def first_bytes(self) -> bytes:
        """The first bytes, which identify the format."""

    def read(self, count: int) -> memoryview:
        """Return the next bytes, or raise ValueError if fewer are left."""

    def check_end(self) -> None:
        """Raise ValueError if bytes are left."""


class MemoryReader:
    """Reads from memory or a mapped file without copying."""

    def __init__(self, buffer: bytes | mmap.mmap) -> None:
        self._view = memoryview(buffer)
        self._position = 0
        self.first_bytes = bytes(self._view[:8])

    @property
    def view(self) -> memoryview:
        return self._view

    def read(self, count: int) -> memoryview:
        left = len(self._view) - self._position
        if count > left:
            raise ValueError(f"expected {count} more bytes, {left} are left")
        self._position += count
        return self._view[self._position - count : self._position]

    def check_end(self) -> None:
        if self._position != len(self._view):
            raise ValueError(f"{len(self._view) - self._position} extra bytes at its end")


class StreamReader:
    """Reads from a decompressor, never more than is asked for."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.first_bytes = stream.read(8)
        self._unread = self.first_bytes

    def read(self, count: int) -> memoryview:
        data = bytearray(self._unread[:count])
        self._unread = self._unread[len(data) :]
        while len(data) < count:
            chunk = self._stream.read(min(_CHUNK_BYTES, count - len(data)))
            if not chunk:
                raise ValueError(f"expected {count} more bytes, {len(data)} are left")
            data += chunk
        return memoryview(data)

    def check_end(self) -> None:
        if self._unread or self._stream.read(1):
            raise ValueError("extra bytes at its end")


def map_file(path: str | os.PathLike[str]) -> bytes | mmap.mmap:
    """Map a file copy-on-write: changing a tensor in it does not change the file."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


@contextmanager
def open_reader(source: PathOrStream) -> Iterator[ByteReader]:
    """Open a path or a stream; errors inside the block become a CheckpointError or DamagedError."""
    try:
        buffer = map_file(source) if isinstance(source, str | os.PathLike) else source.read()
        magic = bytes(buffer[:4])
        # An mmap object has the methods of a file.
        stream = cast(BinaryIO, io.BytesIO(buffer) if isinstance(buffer, bytes) else buffer)
        if magic.startswith(GZIP_MAGIC):
            yield StreamReader(cast(BinaryIO, gzip.GzipFile(fileobj=stream, mode="rb")))
        elif magic == ZSTD_MAGIC:
            check_zstd_end(buffer)
            yield StreamReader(decompress_zstd(stream))
        else:
            yield MemoryReader(buffer)
    except CheckpointError:
        raise
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _damaged_error(source, error) from error
    except OSError as error:
        raise CheckpointError(
            f"cannot read {display_name(source)}: {error.strerror or error}. "
            "Pass a file that save_checkpoint wrote."
        ) from error
    except Exception as error:
        # A damaged file can make the parsers raise any of these.
        expected = (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RuntimeError,
            RecursionError,
            OverflowError,
        )
        if isinstance(error, expected) or is_zstd_error(error):
            raise _damaged_error(source, error) from error
        raise


def _damaged_error(source: object, reason: object) -> DamagedError:
    return DamagedError(
        f"{display_name(source)} is not a complete checkpoint: {reason}. It was truncated or changed, or is "
        "a different kind of file. Use an earlier checkpoint."
    )


def display_name(target: object) -> str:
    """Return how an error message refers to a path or a stream."""
    return repr(str(Path(target))) if isinstance(target, str | os.PathLike) else "the stream"
