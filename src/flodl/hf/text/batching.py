"""Batches of texts of similar length, so that little of a batch is padding."""

from __future__ import annotations

from collections.abc import Sequence

from flodl.core import HFError


def plan_batches(lengths: Sequence[int], *, batch_size: int = 32, max_tokens: int = 8192) -> list[list[int]]:
    """Sort by length, longest first, and cut into batches; return the indices in each.

    A batch has at most `batch_size` texts and, unless it is a single text, at most `max_tokens` tokens
    after padding.

    >>> plan_batches([3, 9, 4, 8], batch_size=2)
    [[1, 3], [2, 0]]
    >>> plan_batches([3, 9, 4, 8], max_tokens=16)
    [[1], [3, 2], [0]]
    """
    for name, value in (("batch_size", batch_size), ("max_tokens", max_tokens)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise HFError(f"{name} is {value!r}; expected an integer of at least 1.")
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    batches: list[list[int]] = []
    room = 0
    for index in order:
        if room == 0:
            batches.append([])
            room = min(batch_size, max(1, max_tokens // max(lengths[index], 1)))
        batches[-1].append(index)
        room -= 1
    return batches
