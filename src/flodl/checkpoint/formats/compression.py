"""Compression: chosen by the suffix of a name when writing, known by content when reading."""

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
# More than any level of zstd asks for by itself; a header may claim 2 GB.
_MOST_WINDOW_BYTES = 1 << 27

# What other programs compress to: a file of such a name would not be what it says.
OTHER_PACKINGS = (".bz2", ".xz", ".lzma", ".lz4", ".zstd", ".zip", ".7z", ".br")

Packing = Literal["gz", "zst"]


def packing_of(name: str) -> Packing | None:
    """Say how a file of this name is compressed.

    >>> packing_of("model.fdl.gz"), packing_of("model.fdl")
    ('gz', None)
    """
    if name.lower().endswith(".gz"):
        return "gz"
    return "zst" if name.lower().endswith(".zst") else None


def name_within(name: str) -> str:
    """Give the name of what is compressed.

    >>> name_within("model.fdl.gz"), name_within("model.fdl")
    ('model.fdl', 'model.fdl')
    """
    packing = packing_of(name)
    return name if packing is None else name[: -len(f".{packing}")]


@contextmanager
def packed(stream: BinaryIO, packing: Packing | None) -> Iterator[BinaryIO]:
    """Give a stream to write to, whose bytes arrive compressed in the given one."""
    if packing is None:
        yield stream
    elif packing == "gz":
        # Weights hardly shrink at any level: take the fastest. No time in the header: same bytes each time.
        with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=1, mtime=0) as file:
            yield cast(BinaryIO, file)
    else:
        with (
            _zstandard()
            .ZstdCompressor(level=3, write_checksum=True)
            .stream_writer(stream, closefd=False) as file
        ):
            yield file


def unpack_zstd(stream: BinaryIO) -> BinaryIO:
    """Give a stream to read from, whose bytes are decompressed from the given one."""
    decompressor = _zstandard().ZstdDecompressor(max_window_size=_MOST_WINDOW_BYTES)
    return cast(BinaryIO, decompressor.stream_reader(stream, read_across_frames=True))


def check_zstd_end(data: bytes | mmap.mmap) -> None:
    """Refuse what ends inside a frame, or goes on behind the last one; ValueError says which.

    The decompressor takes the end of its input for the end of the data: without the last bytes of a frame,
    nobody would compare its checksum.
    """
    position = 0
    while position < len(data):
        if data[position : position + 4] != ZSTD_MAGIC:
            raise ValueError("there are bytes too many at its end")
        position = _frame_end(data, position)
        if position > len(data):
            raise ValueError("it ends in the middle of what was compressed")


def _frame_end(data: bytes | mmap.mmap, start: int) -> int:
    """Walk over a frame by the lengths of its blocks; the end of one that is cut off lies behind the data."""
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
    """Say whether an error comes from zstd, without needing it installed."""
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
