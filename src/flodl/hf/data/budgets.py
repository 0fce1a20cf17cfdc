"""A few fixed sizes for batches of unequal lengths, chosen so that little is wasted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from flodl.data import LengthGroupedSampler

from .tokens import Array

_CPU = torch.device("cpu")
MOST_SIZES = 8
# Batches that are drawn to see how large they are.
_BATCHES = 4096
# More candidates gain nothing, and the search takes their number squared.
_CANDIDATES = 512


def batch_lengths(lengths: Array, batch_size: int, sampler: LengthGroupedSampler | None = None) -> Array:
    """Return the lengths of the texts in many random batches, [batches, batch_size]."""
    count = len(lengths)
    if count <= batch_size:
        return lengths[None]
    if sampler is not None:
        orders = [sampler.order(count, seed=0, epoch=epoch, device=_CPU).numpy() for epoch in range(2)]
    else:
        random = np.random.default_rng(0)
        epochs = max(1, min(64, _BATCHES * batch_size // count))
        orders = [random.permutation(count) for _ in range(epochs)]
    whole = count // batch_size * batch_size
    return np.concatenate([lengths[order[:whole]].reshape(-1, batch_size) for order in orders])


def choose_sizes(needed: Array, *, multiple: int, most: int = MOST_SIZES) -> list[int]:
    """Return at most `most` sizes, multiples of a number, that waste the least for batches of these sizes.

    >>> choose_sizes(np.array([100, 120, 130, 250, 260]), multiple=64, most=3)
    [128, 192, 320]
    """
    rounded = -(-np.asarray(needed) // multiple) * multiple
    values, counts = np.unique(rounded, return_counts=True)
    if len(values) > _CANDIDATES:
        values, counts = _coarser(values, counts)
    return _least_waste(values.tolist(), counts, most)


def _coarser(values: Array, counts: Array) -> tuple[Array, Array]:
    """Merge neighboring candidates into the larger of them."""
    groups = np.array_split(np.arange(len(values)), _CANDIDATES)
    return (
        np.array([values[group[-1]] for group in groups]),
        np.array([counts[group].sum() for group in groups]),
    )


def _least_waste(values: Sequence[int], counts: Array, most: int) -> list[int]:
    """Split sorted values into at most `most` runs, each served by its last value (dynamic programming)."""
    sizes = np.asarray(values, np.float64)
    total, weighted = np.cumsum(counts), np.cumsum(counts * sizes)

    def cost(first: Array, last: int) -> Array:
        """The waste if the values from `first` to `last` get the size of the last one."""
        before = np.where(first > 0, total[first - 1], 0), np.where(first > 0, weighted[first - 1], 0.0)
        return np.asarray(sizes[last] * (total[last] - before[0]) - (weighted[last] - before[1]))

    number = len(sizes)
    best = np.array([float(cost(np.array([0]), last)[0]) for last in range(number)])
    starts: list[Array] = [np.zeros(number, np.int64)]
    for _ in range(1, min(most, number)):
        following, start = best.copy(), starts[-1] * 0 - 1
        for last in range(1, number):
            first = np.arange(1, last + 1)
            totals = best[first - 1] + cost(first, last)
            at = int(totals.argmin())
            if totals[at] < following[last]:
                following[last], start[last] = totals[at], first[at]
        best = following
        starts.append(start)
    chosen, last = [], number - 1
    for start in reversed(starts):
        if start[last] < 0:  # one run fewer is as good
            continue
        chosen.append(int(sizes[last]))
        last = int(start[last]) - 1
        if last < 0:
            break
    return chosen[::-1]


def waste(needed: Array, sizes: Sequence[int]) -> float:
    """Return how much larger the sizes are than needed, as a fraction of what is needed.

    >>> waste(np.array([100, 120]), [128])
    0.163...
    """
    used = np.asarray(sizes)[np.searchsorted(np.asarray(sizes), needed)]
    return float(used.sum() / needed.sum() - 1)
