"""A checksum that is computed on several cores.

The data is split into blocks of 4 MiB; the checksum is the sha256 of the concatenated sha256 of each block.

>>> digest([b"ab", b"c"]) == hashlib.sha256(hashlib.sha256(b"abc").digest()).hexdigest()
True
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

# sha256 is the fastest hash in the standard library where the processor supports it: 1.0 GB/s per core
# (blake2b 0.5, sha512 0.4, md5 0.4), 1.8 GB/s on two cores.
ALGORITHM = "sha256 of sha256 per 4 MiB"
_BLOCK_BYTES = 4 << 20
_MAX_THREADS = 16

Buffer = bytes | bytearray | memoryview


def digest(pieces: Iterable[Buffer]) -> str:
    """Return the checksum of the concatenated pieces."""
    return start_digest(pieces)()


def start_digest(pieces: Iterable[Buffer]) -> Callable[[], str]:
    """Start computing a checksum in the background; call the result to wait for it."""
    blocks = list(_blocks(pieces))
    threads = min(_MAX_THREADS, os.cpu_count() or 1, len(blocks))
    hashes: Iterator[bytes] = map(_hash, blocks)
    # For one or two blocks, threads cost more than they save.
    if threads > 1 and len(blocks) > 2:
        pool = ThreadPoolExecutor(threads, thread_name_prefix="flodl-digest")
        with suppress(RuntimeError):  # no new threads while the interpreter shuts down
            hashes = pool.map(_hash, blocks)
        pool.shutdown(wait=False)
    return lambda: hashlib.sha256(b"".join(hashes)).hexdigest()


def _blocks(pieces: Iterable[Buffer]) -> Iterator[list[memoryview]]:
    """Split the pieces into blocks; each block is a list of consecutive views."""
    block: list[memoryview] = []
    free = _BLOCK_BYTES
    for piece in pieces:
        view = memoryview(piece)
        while len(view):
            block.append(view[:free])
            view = view[free:]
            free -= len(block[-1])
            if not free:
                yield block
                block, free = [], _BLOCK_BYTES
    if block:
        yield block


def _hash(block: list[memoryview]) -> bytes:
    sha256 = hashlib.sha256()
    for view in block:
        sha256.update(view)
    return sha256.digest()
