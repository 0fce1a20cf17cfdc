"""A set of positions as disjoint ranges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from flodl.core import DistributedError


class RangeSet:
    """Disjoint ranges [start, stop); ranges that touch are merged, ranges that overlap are an error.

    >>> done = RangeSet()
    >>> done.add(0, 4)
    >>> done.add(8, 12)
    >>> done.add(4, 8)
    >>> list(done), done.length
    ([(0, 12)], 12)
    >>> done.add(11, 13)
    Traceback (most recent call last):
    flodl.core.errors.DistributedError: positions 11 to 13 overlap with positions 0 to 12, ...
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.length = 0

    def add(self, start: int, stop: int) -> None:
        if start >= stop:
            raise DistributedError(f"the range from {start} to {stop} is empty.")
        starts, stops = self._starts, self._stops
        index = bisect_right(starts, start)
        # Leases never overlap, so this guards against a defect.
        if index and stops[index - 1] > start:
            self._refuse(start, stop, index - 1)
        if index < len(starts) and starts[index] < stop:
            self._refuse(start, stop, index)
        self.length += stop - start
        if index < len(starts) and starts[index] == stop:
            stop = stops[index]
            del starts[index], stops[index]
        if index and stops[index - 1] == start:
            stops[index - 1] = stop
        else:
            starts.insert(index, start)
            stops.insert(index, stop)

    def _refuse(self, start: int, stop: int, index: int) -> None:
        raise DistributedError(
            f"positions {start} to {stop} overlap with positions {self._starts[index]} to "
            f"{self._stops[index]}, which are already committed. Each position is committed once."
        )

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._starts, self._stops))

    def __len__(self) -> int:
        return len(self._starts)
