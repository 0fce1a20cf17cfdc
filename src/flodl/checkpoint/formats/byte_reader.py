"""Readers for the bytes of a checkpoint: a mapped file or a stream, compressed or not, detected by content.

A size that a file claims is never allocated up front: memory grows only with the bytes actually read,
and a small compressed file cannot expand without limit.
"""

from __future__ import annotations

import gzip
import io
import mmap
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from flodl.core import CheckpointError, DamagedError
from flodl.core.files import open_regular

from .compression import GZIP_MAGIC, ZSTD_MAGIC, check_zstd_end, decompress_zstd, is_zstd_error

PathOrStream = str | os.PathLike[str] | BinaryIO

_CHUNK_BYTES = 1 << 20
# Up to these sizes, a compressed file may have any ratio: tensors of zeros compress to a thousandth.
_FREE_BYTES = 256 << 20
_FREE_HEADER_BYTES = 8 << 20
# Beyond them, the limits are these multiples of its size. Weights shrink by a few percent, names to a tenth.
_MAX_RATIO = 100
_MAX_HEADER_RATIO = 32
# Formats that cannot be read from a stream bit by bit, by their first bytes.
ZIP_MAGIC = b"PK"
# The suffixes of files that can be loaded.
_SUFFIXES = (".fdl", ".safetensors", ".fdlc", ".pt", ".pth", ".ckpt", ".bin", ".gz", ".zst")
_WHOLE = (GZIP_MAGIC, ZSTD_MAGIC, ZIP_MAGIC)


class ByteReader(Protocol):
    """Reads bytes in order."""

    @property
    def first_bytes(self) -> bytes:
        """The first bytes, which identify the format."""

    def read(self, count: int) -> memoryview:
        """Return the next bytes, or raise ValueError if fewer are left."""

    def read_header(self, count: int) -> memoryview:
        """Do the same for a header, whose contents take many times its size in memory."""

    def skip(self, count: int) -> None:
        """Skip the next bytes, or raise ValueError if fewer are left."""

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

    def read_header(self, count: int) -> memoryview:
        return self.read(count)

    def skip(self, count: int) -> None:
        self.read(count)

    def check_end(self) -> None:
        if self._position != len(self._view):
            raise ValueError(f"{len(self._view) - self._position} extra bytes at its end")


class StreamReader:
    """Reads from a stream, never more than is asked for."""

    def __init__(self, stream: BinaryIO, first_bytes: bytes = b"") -> None:
        self._stream = stream
        self.first_bytes = first_bytes or _read_up_to(stream, 8)
        self._unread = self.first_bytes

    def read(self, count: int) -> memoryview:
        data = bytearray()
        for chunk in self._chunks(count):
            data += chunk
        return memoryview(data)

    def read_header(self, count: int) -> memoryview:
        return self.read(count)

    def skip(self, count: int) -> None:
        for _ in self._chunks(count):
            pass

    def check_end(self) -> None:
        if self._unread or self._stream.read(1):
            raise ValueError("extra bytes at its end")

    def _chunks(self, count: int) -> Iterator[bytes]:
        chunk = self._unread[:count]
        self._unread = self._unread[len(chunk) :]
        left = count - len(chunk)
        yield chunk
        while left:
            chunk = self._stream.read(min(_CHUNK_BYTES, left))
            if not chunk:
                raise ValueError(f"expected {count} more bytes, {count - left} are left")
            left -= len(chunk)
            yield chunk


class ExpandingReader(StreamReader):
    """Reads from a decompressor, and raises if the content is implausibly large for the compressed size."""

    def __init__(self, stream: BinaryIO, compressed_bytes: int, where: str) -> None:
        super().__init__(stream)
        self._compressed_bytes, self._where, self._num_read = compressed_bytes, where, 0

    def read_header(self, count: int) -> memoryview:
        self._check(count, _FREE_HEADER_BYTES, _MAX_HEADER_RATIO)
        return self.read(count)

    def _chunks(self, count: int) -> Iterator[bytes]:
        self._num_read += count
        self._check(self._num_read, _FREE_BYTES, _MAX_RATIO)
        return super()._chunks(count)

    def _check(self, count: int, free: int, ratio: int) -> None:
        if count > max(free, ratio * self._compressed_bytes):
            raise CheckpointError(
                f"{self._where} has {self._compressed_bytes} bytes and claims to expand to {count} or more, "
                f"over {ratio} times as many. Nothing was loaded. If you trust it, decompress it first, with "
                "gunzip or zstd -d."
            )


def _read_up_to(stream: BinaryIO, count: int) -> bytes:
    """Return the next bytes of a stream, fewer only at its end."""
    data = b""
    while len(data) < count and (chunk := stream.read(count - len(data))):
        data += chunk
    return data


def map_file(path: str | os.PathLike[str]) -> bytes | mmap.mmap:
    """Map a regular file copy-on-write: changing a tensor in it does not change the file."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


@contextmanager
def open_reader(source: PathOrStream) -> Iterator[ByteReader]:
    """Open a path or a stream; errors inside the block become a CheckpointError or DamagedError."""
    try:
        if isinstance(source, str | os.PathLike):
            buffer = map_file(source)
            first = bytes(buffer[:8])
        else:
            first = _read_up_to(source, 8)
            if not first.startswith(_WHOLE):
                # A stream may never end (a device): read only what the header claims.
                yield StreamReader(source, first)
                return
            buffer = first + source.read()
        # An mmap object has the methods of a file.
        stream = cast(BinaryIO, io.BytesIO(buffer) if isinstance(buffer, bytes) else buffer)
        if first.startswith(GZIP_MAGIC):
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=stream, mode="rb"))
            yield ExpandingReader(stream, len(buffer), display_name(source))
        elif first.startswith(ZSTD_MAGIC):
            check_zstd_end(buffer)
            yield ExpandingReader(decompress_zstd(stream), len(buffer), display_name(source))
        else:
            yield MemoryReader(buffer)
    except CheckpointError:
        raise
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _damaged_error(source, error) from error
    except OSError as error:
        hint = _similar_file(source) if isinstance(error, FileNotFoundError) else ""
        raise CheckpointError(
            f"cannot read {display_name(source)}: {error.strerror or error}. "
            f"{hint or 'Pass a file that save_checkpoint wrote.'}"
        ) from error
    except Exception as error:
        # A damaged file can make the parsers raise any of these.
        expected = (ValueError, LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError)
        if isinstance(error, expected) or is_zstd_error(error):
            raise _damaged_error(source, error) from error
        raise


def _similar_file(source: object) -> str:
    """Return a hint with the checkpoint whose name is close to that of a missing one.

    Other files, and short names that are similar by chance, are not meant.
    """
    if not isinstance(source, str | os.PathLike):
        return ""
    path = Path(source)
    try:
        names = [entry.name for entry in os.scandir(path.parent) if entry.is_file()]
    except OSError:
        return ""
    stems = {_stem(name): name for name in names if name.lower().endswith(_SUFFIXES)}
    close = get_close_matches(_stem(path.name), stems, n=1, cutoff=0.7)
    return f"Did you mean {str(path.parent / stems[close[0]])!r}?" if close else ""


def _stem(name: str) -> str:
    known = name.lower().removesuffix(".gz").removesuffix(".zst")
    return Path(known).stem


def _damaged_error(source: object, reason: object) -> DamagedError:
    return DamagedError(
        f"{display_name(source)} is not a complete checkpoint: {reason}. It was truncated or changed, or is "
        "a different kind of file. Use an earlier checkpoint."
    )


def display_name(target: object) -> str:
    """Return how an error message refers to a path or a stream."""
    return repr(str(Path(target))) if isinstance(target, str | os.PathLike) else "the stream"
