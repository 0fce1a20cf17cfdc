"""Random numbers for a batch, one stream for each sample."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .order import STRIDE, mix, sample_keys

_Read = Callable[[Tensor], Tensor]  # from random bits to what was asked for

_SMALL = 16  # numbers a sample up to which a whole epoch is drawn at once
_FEW = 16  # draws of a batch that are made for a whole epoch
_STRETCH = 1 << 16  # samples for which draws are made at once where an epoch has no known end


class Chance:
    """What an augmentation draws from: numbers that depend on seed, epoch and position alone.

    Every draw has one row for each sample of the batch, on the device of the batch. Batch size, device,
    workers and the place where a run was resumed make no difference, and nothing waits for the device.

    >>> from flodl.data.sampling.order import sample_keys
    >>> chance = Chance(sample_keys(7, torch.arange(4)))
    >>> chance.integers(10).tolist(), chance.coin(0.5).tolist()
    ([5, 7, 5, 6], [True, False, False, False])
    >>> Chance(sample_keys(7, torch.arange(2, 4))).integers(10).tolist()
    [5, 6]
    """

    def __init__(self, keys: Tensor) -> None:
        self._keys = keys
        self._drawn = 0

    @property
    def keys(self) -> Tensor:
        """The 64-bit key of each sample."""
        return self._keys

    @property
    def device(self) -> torch.device:
        """Where the numbers are drawn."""
        return self._keys.device

    def __len__(self) -> int:
        return len(self._keys)

    def uniform(self, *shape: int) -> Tensor:
        """Draw numbers from [0, 1), of the given shape for each sample."""
        return self._draw(shape, ("uniform",), lambda bits: _top(bits, 24).to(torch.float32) * 2**-24)

    def integers(self, bound: int, *shape: int) -> Tensor:
        """Draw whole numbers from 0 up to, not including, `bound`."""
        if not 0 < bound < 2**31:
            raise ValueError(f"bound is {bound}; give a whole number from 1 up to 2**31 - 1.")
        return self._draw(shape, ("integers", bound), lambda bits: (_top(bits, 32) * bound) >> 32)

    def coin(self, p: float, *shape: int) -> Tensor:
        """Draw true with probability `p`."""
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"p is {p}; a probability lies between 0 and 1.")
        return self._draw(shape, ("coin", p), lambda bits: _top(bits, 32) < int(p * 2**32))

    def normal(self, *shape: int) -> Tensor:
        """Draw from the standard normal distribution; the last digits may differ between devices."""
        radius = (-2.0 * torch.log1p(-self.uniform(*shape))).sqrt()
        return radius * torch.cos(2.0 * math.pi * self.uniform(*shape))

    def _draw(self, shape: tuple[int, ...], name: tuple[object, ...], read: _Read) -> Tensor:
        first, count = self._drawn, math.prod(shape)
        self._drawn += count
        return self._values((first, count, *name), read).view(len(self), *shape)

    def _values(self, what: tuple[object, ...], read: _Read) -> Tensor:
        return read(_bits(self._keys, what))


class EpochChance:
    """The chances of all batches of an epoch: small draws are made once for all samples, then only cut."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys
        self._table: dict[tuple[object, ...], tuple[_Read, Tensor]] = {}

    def between(self, start: int, stop: int, *, shared: bool = False) -> Chance:
        """Give the chance of the batch at these positions.

        With `shared`, for those who only read them, draws are parts of the epoch's own memory.
        """
        return _Part(self, start, stop, shared=shared)

    def draws_at_once(self, what: tuple[object, ...]) -> bool:
        """Say whether a draw is made for the whole epoch: one of a few small ones."""
        is_small = isinstance(what[1], int) and what[1] <= _SMALL
        return what in self._table or (is_small and len(self._table) < _FEW)

    def values(self, what: tuple[object, ...], read: _Read) -> Tensor:
        """Give this draw for the whole epoch."""
        if what not in self._table:
            self._table[what] = read, read(_bits(self.keys, what))
        return self._table[what][1]

    def draw_like(self, other: EpochChance) -> None:
        """Draw already now what was drawn for another epoch."""
        for what, (read, _) in other._table.items():
            self.values(what, read)


class PassingChance:
    """The chances of batches that come one after another, drawn for a stretch of the epoch at a time.

    >>> passing = PassingChance(7, torch.device("cpu"))
    >>> passing.between(2, 4).integers(10).tolist(), passing.between(4, 6).keys.shape
    ([5, 6], torch.Size([2]))
    """

    def __init__(self, key: int, device: torch.device) -> None:
        self._key, self._device = key, device
        self._first = self._end = 0
        self._stretch = EpochChance(torch.empty(0, dtype=torch.int64))

    def between(self, start: int, stop: int, *, shared: bool = False) -> Chance:
        """Give the chance of the batch at these positions; `shared` as of an epoch's."""
        if not self._first <= start <= stop <= self._end:
            self._first, self._end = start, max(stop, start + _STRETCH)
            positions = torch.arange(self._first, self._end, device=self._device)
            self._stretch = EpochChance(sample_keys(self._key, positions))
        return self._stretch.between(start - self._first, stop - self._first, shared=shared)


class _Part(Chance):
    def __init__(self, epoch: EpochChance, start: int, stop: int, *, shared: bool) -> None:
        super().__init__(epoch.keys[start:stop])
        self._epoch, self._start, self._stop, self._shared = epoch, start, stop, shared

    def _values(self, what: tuple[object, ...], read: _Read) -> Tensor:
        if not self._epoch.draws_at_once(what):
            return super()._values(what, read)
        values = self._epoch.values(what, read)[self._start : self._stop]
        return values if self._shared else values.clone()


def _bits(keys: Tensor, what: tuple[object, ...]) -> Tensor:
    """Give 64 random bits for each sample and number of the draw `(first, count, …)`."""
    first, count = what[0], what[1]
    assert isinstance(first, int)
    assert isinstance(count, int)
    numbers = torch.arange(first + 1, first + count + 1, device=keys.device)
    shifted: Tensor = keys[:, None] + numbers * STRIDE
    return mix(shifted)


def _top(bits: Tensor, count: int) -> Tensor:
    """Give the highest bits as a number that is not negative."""
    top: Tensor = (bits >> (64 - count)) & (2**count - 1)
    return top
