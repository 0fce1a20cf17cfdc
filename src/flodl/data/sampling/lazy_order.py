"""The order of an epoch that is too long to be stored: each index is computed when it is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor

from flodl.core.errors import DataError

from .order import STRIDE, mix, stream_key

_FIRST_BLOCK, _MAX_BLOCK = 1 << 8, 1 << 14  # indices computed at once: few for the first batch, then more
_CHUNK = 1 << 22  # the same, if all are needed
_MAX_COUNT = 2**62  # larger indices would overflow
_ROUNDS = 4


class LazyOrder:
    """The index of the sample at each position, computed for a block of positions at a time.

    >>> order = LazyOrder(10**12, lambda positions: positions * 2, torch.device("cpu"))
    >>> order[999_999_999_997:10**12], len(order)
    (tensor([1999999999994, 1999999999996, 1999999999998]), 1000000000000)
    """

    def __init__(self, count: int, index_at: Callable[[Tensor], Tensor], device: torch.device) -> None:
        if count > _MAX_COUNT:
            raise DataError(f"the source has {count} samples; a loader can order up to 2**62.")
        self._count, self._index_at, self.device = count, index_at, device
        self._first = self._end = 0
        self._block_size = _FIRST_BLOCK
        self._block = torch.empty(0, dtype=torch.int64, device=device)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, span: slice) -> Tensor:
        """Return the indices from position `span.start` to `span.stop`, which is at most the length."""
        start, stop = span.start, span.stop
        if not self._first <= start <= stop <= self._end:
            self._first, self._end = start, min(max(stop, start + self._block_size), self._count)
            self._block_size = min(2 * self._block_size, _MAX_BLOCK)
            self._block = self.at(torch.arange(start, self._end, device=self.device))
        return self._block[start - self._first : stop - self._first]

    def at(self, positions: Tensor) -> Tensor:
        """Return the indices at these positions, which must be valid."""
        return self._index_at(positions)

    def stored(self) -> Tensor:
        """Return the whole order as a tensor, for a device that gathers the samples itself."""
        order = torch.empty(self._count, dtype=torch.int64, device=self.device)
        for start in range(0, self._count, _CHUNK):
            stop = min(start + _CHUNK, self._count)
            order[start:stop] = self.at(torch.arange(start, stop, device=self.device))
        return order


Order = Tensor | LazyOrder


@dataclass(frozen=True)
class Permutation:
    """A random permutation of the integers below `count` whose values are computed independently.

    The integers are the cells of a table with about as many rows as columns. Each round of this Feistel
    network rotates every column by a hash of its number, then every row.

    >>> shuffled = Permutation.of(10, seed=0, epoch=0)(torch.arange(10))
    >>> sorted(shuffled.tolist()) == list(range(10))
    True
    """

    count: int
    keys: tuple[int, ...]

    @classmethod
    def of(cls, count: int, *, seed: int, epoch: int) -> Permutation:
        """Return the permutation of an epoch."""
        keys = (stream_key(seed, epoch, f"order/{number}") for number in range(2 * _ROUNDS))
        return cls(count, tuple(keys))

    def __call__(self, positions: Tensor) -> Tensor:
        indices = self._permute_cells(positions)
        # The table has a few cells too many. From such a cell, permute again until the result is valid.
        outside = (indices >= self.count).nonzero().squeeze(1)
        while len(outside):
            indices[outside] = self._permute_cells(indices[outside])
            outside = outside[indices[outside] >= self.count]
        return indices

    def _permute_cells(self, cells: Tensor) -> Tensor:
        num_rows = isqrt(self.count - 1) + 1
        num_columns = -(-self.count // num_rows)
        rows, columns = cells // num_columns, cells % num_columns
        for row_key, column_key in zip(self.keys[::2], self.keys[1::2]):
            rows = (rows + _hash(columns, row_key)) % num_rows
            columns = (columns + _hash(rows, column_key)) % num_columns
        return rows * num_columns + columns


def _hash(numbers: Tensor, key: int) -> Tensor:
    """Return 62 random bits for each number."""
    bits: Tensor = (mix(numbers * STRIDE + key) >> 2) & (2**62 - 1)
    return bits
