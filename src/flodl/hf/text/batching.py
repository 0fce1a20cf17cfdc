"""Batches of texts of similar length, so that little of a batch is padding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from flodl.core import HFError
from flodl.core.integers import as_integer, is_integer


def plan_batches(
    lengths: Sequence[int], *, batch_size: int = 32, max_tokens: int = 8192, batch_cost: int | None = None
) -> list[list[int]]:
    """Sort by length, longest first, and cut into batches; return the indices in each.

    A batch has at most `batch_size` texts and, unless it is a single text, at most `max_tokens` tokens
    after padding. Batches are full by default. With `batch_cost`, which is what a batch costs besides its
    tokens, in tokens, they are cut where the sum of both costs is lowest.

    >>> plan_batches([3, 9, 4, 8], batch_size=2)
    [[1, 3], [2, 0]]
    >>> plan_batches([3, 9, 4, 8], max_tokens=16)
    [[1], [3, 2], [0]]
    >>> plan_batches([3, 90, 4, 80], batch_cost=20)
    [[1, 3], [2, 0]]
    """
    batch_size, max_tokens = as_integer(batch_size), as_integer(max_tokens)
    for name, value in (("batch_size", batch_size), ("max_tokens", max_tokens)):
        if not is_integer(value, at_least=1):
            raise HFError(f"{name} is {value!r}; expected an integer of at least 1.")
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    room = [min(batch_size, max(1, max_tokens // max(lengths[index], 1))) for index in order]
    if batch_cost is None:
        cuts = _full(room)
    else:
        cuts = _cheapest([lengths[index] for index in order], room, batch_cost)
    return [order[start:stop] for start, stop in pairwise([0, *cuts])]


def _full(room: Sequence[int]) -> list[int]:
    """Return where full batches end."""
    ends = []
    end = 0
    while end < len(room):
        end = min(end + room[end], len(room))
        ends.append(end)
    return ends


def _cheapest(lengths: Sequence[int], room: Sequence[int], batch_cost: int) -> list[int]:
    """Return where batches end such that padded tokens and batches cost the least (dynamic programming)."""
    count = len(lengths)
    # From the end: what the texts from here on cost, and where their first batch ends.
    rest, ends = [0] * (count + 1), [count] * (count + 1)
    for start in range(count - 1, -1, -1):
        longest, last = lengths[start], min(start + room[start], count)
        # Of equal costs, the largest batch.
        best, end = min((longest * (end - start) + rest[end], -end) for end in range(start + 1, last + 1))
        rest[start], ends[start] = best + batch_cost, -end
    cuts, end = [], 0
    while end < count:
        end = ends[end]
        cuts.append(end)
    return cuts
