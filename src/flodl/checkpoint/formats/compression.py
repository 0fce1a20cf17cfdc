"""Compression: selected by the suffix of the path when writing, detected by content when reading."""

from __future__ import annotations

import gzip
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import BinaryIO, Literal, cast

from flodl.core import CheckpointError

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# More than any zstd level uses by default; a header may claim 2 GB.
_MAX_WINDOW_BYTES = 1 << 27

# Suffixes of compressions that flodl does not write.
UNSUPPORTED_SUFFIXES = (".bz2", ".xz", ".lzma", ".lz4", ".zstd", ".zip", ".7z", ".br")

Compression = Literal["gz", "zst"]


def compression_of(name: str) -> Compression | None:
    """Return the compression that the suffix of a file name stands for.

    >>> compression_of("model.fdl.gz"), compression_of("model.fdl")
    ('gz', None)
    """
    if name.lower().endswith(".gz"):
        return "gz"
    return "zst" if name.lower().endswith(".zst") else None


def without_compression_suffix(name: str) -> str:
    """Return a file name without its compression suffix.

    >>> without_compression_suffix("model.fdl.gz"), without_compression_suffix("model.fdl")
    ('model.fdl', 'model.fdl')
    """
    compression = compression_of(name)
    return name if compression is None else name[: -len(f".{compression}")]


@contextmanager
def compress(stream: BinaryIO, compression: Compression | None) -> Iterator[BinaryIO]:
    """Yield a stream that compresses what is written to it into `stream`."""
    if compression is None:
        yield stream
    elif compression == "gz":
        # Weights hardly shrink at any level, so use the fastest. No time stamp, so output is reproducible.
        with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=1, mtime=0) as file:
            yield cast(BinaryIO, file)
    else:
        with (
            _zstandard()
            .ZstdCompressor(level=3, write_checksum=True)
            .stream_writer(stream, closefd=False) as file
        ):
            yield file


def decompress_zstd(stream: BinaryIO) -> BinaryIO:
    """Return a stream that yields the decompressed bytes of `stream`."""
    decompressor = _zstandard().ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    return cast(BinaryIO, decompressor.stream_reader(stream, read_across_frames=True))


def check_zstd_end(data: bytes | mmap.mmap) -> None:
    """Raise ValueError if the data ends inside a frame, or continues after the last one.

    The decompressor takes the end of its input for the end of the data. If the last bytes of a frame were
    missing, its checksum would never be compared.
    """
    position = 0
    while position < len(data):
        if data[position : position + 4] != ZSTD_MAGIC:
            raise ValueError("extra bytes at its end")
        position = _frame_end(data, position)
        if position > len(data):
            raise ValueError("it ends inside a compressed frame")


def _frame_end(data: bytes | mmap.mmap, start: int) -> int:
    """Return where a frame ends, found from its block lengths; past the data if the frame is truncated."""
    kind = int.from_bytes(data[start + 4 : start + 5], "little")
    is_single, has_checksum = kind >> 5 & 1, kind >> 2 & 1
    position = start + 6 - is_single + (0, 1, 2, 4)[kind & 3] + (is_single, 2, 4, 8)[kind >> 6]
    is_last = 0
    while not is_last:
        if position + 3 > len(data):
            return len(data) + 1
        block = int.from_bytes(data[position : position + 3], "little")
        is_last, is_repeated = block & 1, block >> 1 & 3 == 1
        position += 3 + (1 if is_repeated else block >> 3)
    return position + 4 * has_checksum


def is_zstd_error(error: Exception) -> bool:
    """Return whether an error was raised by zstd, without importing it."""
    return type(error).__name__ == "ZstdError"


def _zstandard() -> ModuleType:
    try:
        import zstandard
    except ImportError:
        raise CheckpointError(
            "zstd needs the package 'zstandard', which is not installed. "
            "Run pip install zstandard, or use '.gz' or no suffix: weights hardly shrink."
        ) from None
    return zstandard
