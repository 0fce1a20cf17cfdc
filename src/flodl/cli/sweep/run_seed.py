"""The seed that a search uses for one run."""

from __future__ import annotations

import hashlib


def seed_of_run(seed: int, number: int) -> int:
    """Return a different seed for each run; otherwise, a recreated search would repeat its first values.

    >>> seed_of_run(0, 1) == seed_of_run(0, 1), seed_of_run(0, 1) == seed_of_run(0, 2)
    (True, False)
    """
    digest = hashlib.sha256(f"{seed} {number}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
