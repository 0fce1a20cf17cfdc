"""Splitting a number of batches among ranks so that the last one finishes as early as possible."""

from __future__ import annotations

import heapq
from collections.abc import Mapping


def makespan(counts: Mapping[int, int], ms: Mapping[int, float]) -> float:
    """Return the milliseconds until the last rank has finished its batches.

    >>> makespan({0: 8, 1: 2}, {0: 10.0, 1: 50.0})
    100.0
    """
    return max((count * ms[rank] for rank, count in counts.items()), default=0.0)


def shares(
    batches: int, ms: Mapping[int, float], *, max_batches: Mapping[int, int] | None = None
) -> dict[int, int]:
    """Return how many of `batches` each rank trains; a rank that would delay the others gets 0.

    The sum is `batches`, or the sum of `max_batches` where that is smaller.

    >>> shares(10, {0: 10.0, 1: 20.0, 2: 500.0})
    {0: 7, 1: 3, 2: 0}
    >>> shares(10, {0: 10.0, 1: 20.0}, max_batches={0: 4})
    {0: 4, 1: 6}
    """
    most = {rank: min(batches, (max_batches or {}).get(rank, batches)) for rank in ms}
    batches = min(batches, sum(most.values()))
    counts = dict.fromkeys(ms, 0)
    left, until = batches, 0.0
    # Whole batches that fit into the common time. What is left is less than one batch per rank, unless ranks
    # are full; then the time of the others is extended.
    while left > 0:
        speed = sum(1.0 / ms[rank] for rank in ms if counts[rank] < most[rank])
        until += left / speed
        # The tolerance keeps a quotient like 2.9999999 from losing a batch, but never adds one too many.
        counts = {rank: min(most[rank], int(until * (1 - 1e-12) / ms[rank])) for rank in ms}
        left = batches - sum(counts.values())
        if left <= len(ms):
            break
    waiting = [((counts[rank] + 1) * ms[rank], rank) for rank in ms if counts[rank] < most[rank]]
    heapq.heapify(waiting)
    for _ in range(left):
        _, rank = heapq.heappop(waiting)
        counts[rank] += 1
        if counts[rank] < most[rank]:
            heapq.heappush(waiting, ((counts[rank] + 1) * ms[rank], rank))
    return counts
