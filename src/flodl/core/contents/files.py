"""A hash of the contents of a file; of parts of it if it is large."""

from __future__ import annotations

import hashlib
import os

from ..files import open_regular
from .arrays import BLOCK, MAX_BYTES, block_starts


def file_text(path: str | os.PathLike[str]) -> str | None:
    """Describe a file by its size and a hash: of all bytes, or of 64 parts if it has more than 1 MiB.

    Where it is and when it was written do not matter. None for what is not a regular file, or not readable.

    >>> file_text("/dev/zero"), file_text("/")
    (None, None)
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            found = hashlib.sha256()
            if size <= MAX_BYTES:
                found.update(file.read(size))
            else:
                for start in block_starts(size - BLOCK):
                    file.seek(start)
                    found.update(file.read(BLOCK))
    except (OSError, ValueError):  # no such file; a text that cannot be a path
        return None
    return f"{size} bytes #{found.hexdigest()[:8]}"
