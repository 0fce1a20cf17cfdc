"""The error of a reduction that can be repeated."""

from __future__ import annotations

from flodl.core.errors import DistributedError


class ReductionFailed(DistributedError):
    """A reduction did not complete. Nothing changed; it can be repeated in the next generation.

    `ranks` are the ranks that caused it, as far as they are known.
    """

    def __init__(self, message: str, *, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks
