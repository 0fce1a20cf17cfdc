"""Random numbers for the samples of a batch, independent of how samples are batched."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .order import STRIDE, mix, sample_keys

_Convert = Callable[[Tensor], Tensor]  # from random bits to the requested distribution

_MAX_CACHED_NUMBERS = 16  # per sample, in a draw that is made for a whole epoch at once
_MAX_CACHED_DRAWS = 16  # of a batch that are made for a whole epoch at once
BLOCK_SAMPLES = 1 << 16  # samples drawn at once in an epoch of unknown length


class Chance:
    """A source of random numbers for augmentations that depend only on seed, epoch and position.

    Every draw has one row per sample of the batch, on the device of the batch. Batch size, device, workers
    and resuming make no difference, and no call synchronizes with the device.

    >>> from flodl.data.sampling.order import sample_keys
    >>> chance = Chance(sample_keys(7, torch.arange(4)))
    >>> chance.integers(10).tolist(), chance.coin(0.5).tolist()
    ([5, 7, 5, 6], [True, False, False, False])
    >>> Chance(sample_keys(7, torch.arange(2, 4))).integers(10).tolist()
    [5, 6]
    """

    def __init__(self, keys: Tensor) -> None:
        self._keys = keys
        self._num_drawn = 0

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
        """Draw from [0, 1), with the given shape for each sample."""
        return self._draw(shape, ("uniform",), lambda bits: _top_bits(bits, 24).to(torch.float32) * 2**-24)

    def integers(self, bound: int, *shape: int) -> Tensor:
        """Draw integers from 0 up to, but not including, `bound`."""
        if not 0 < bound < 2**31:
            raise ValueError(f"bound={bound}. Pass an integer from 1 to 2**31 - 1.")
        return self._draw(shape, ("integers", bound), lambda bits: (_top_bits(bits, 32) * bound) >> 32)

    def coin(self, p: float, *shape: int) -> Tensor:
        """Draw true with probability `p`."""
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"p={p}. Pass a probability between 0 and 1.")
        return self._draw(shape, ("coin", p), lambda bits: _top_bits(bits, 32) < int(p * 2**32))

    def normal(self, *shape: int) -> Tensor:
        """Draw from the standard normal distribution; the last digits may differ between devices."""
        radius = (-2.0 * torch.log1p(-self.uniform(*shape))).sqrt()
        return radius * torch.cos(2.0 * math.pi * self.uniform(*shape))

    def _draw(self, shape: tuple[int, ...], name: tuple[object, ...], convert: _Convert) -> Tensor:
        first, count = self._num_drawn, math.prod(shape)
        self._num_drawn += count
        return self._values((first, count, *name), convert).view(len(self), *shape)

    def _values(self, draw: tuple[object, ...], convert: _Convert) -> Tensor:
        return convert(_random_bits(self._keys, draw))


class EpochChance:
    """Provides the `Chance` of each batch of an epoch; small draws are made for all samples, then sliced."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys
        self.cache: dict[tuple[object, ...], tuple[_Convert, Tensor]] = {}

    def between(self, start: int, stop: int, *, shared: bool = False) -> Chance:
        """Return the `Chance` of the batch at these positions.

        With `shared`, draws are views of the epoch's memory and must not be written to.
        """
        return _BatchChance(self, start, stop, shared=shared)

    def is_cached(self, draw: tuple[object, ...]) -> bool:
        """Return whether a draw is made for the whole epoch: one of the first few small ones."""
        is_small = isinstance(draw[1], int) and draw[1] <= _MAX_CACHED_NUMBERS
        return draw in self.cache or (is_small and len(self.cache) < _MAX_CACHED_DRAWS)

    def values(self, draw: tuple[object, ...], convert: _Convert) -> Tensor:
        """Return this draw for the whole epoch."""
        if draw not in self.cache:
            self.cache[draw] = convert, convert(_random_bits(self.keys, draw))
        return self.cache[draw][1]

    def draw_same_as(self, other: EpochChance) -> None:
        """Make the draws that were made for another epoch."""
        for draw, (convert, _) in other.cache.items():
            self.values(draw, convert)


class StreamChance:
    """Provides the `Chance` of consecutive batches, drawn for a block of samples at a time.

    >>> stream = StreamChance(7, torch.device("cpu"))
    >>> stream.between(2, 4).integers(10).tolist(), stream.between(4, 6).keys.shape
    ([5, 6], torch.Size([2]))
    """

    def __init__(self, key: int, device: torch.device) -> None:
        self._key, self._device = key, device
        self._first = self._end = 0
        self._block = EpochChance(torch.empty(0, dtype=torch.int64))

    def between(self, start: int, stop: int, *, shared: bool = False) -> Chance:
        """Return the `Chance` of the batch at these positions; `shared` as in `EpochChance`."""
        if not self._first <= start <= stop <= self._end:
            self._first, self._end = start, max(stop, start + BLOCK_SAMPLES)
            positions = torch.arange(self._first, self._end, device=self._device)
            self._block = EpochChance(sample_keys(self._key, positions))
        return self._block.between(start - self._first, stop - self._first, shared=shared)


class _BatchChance(Chance):
    def __init__(self, epoch: EpochChance, start: int, stop: int, *, shared: bool) -> None:
        super().__init__(epoch.keys[start:stop])
        self._epoch, self._start, self._stop, self._shared = epoch, start, stop, shared

    def _values(self, draw: tuple[object, ...], convert: _Convert) -> Tensor:
        if not self._epoch.is_cached(draw):
            return super()._values(draw, convert)
        values = self._epoch.values(draw, convert)[self._start : self._stop]
        return values if self._shared else values.clone()


def _random_bits(keys: Tensor, draw: tuple[object, ...]) -> Tensor:
    """Return 64 random bits for each sample and each number of the draw `(first, count, …)`."""
    first, count = draw[0], draw[1]
    assert isinstance(first, int)
    assert isinstance(count, int)
    numbers = torch.arange(first + 1, first + count + 1, device=keys.device)
    shifted: Tensor = keys[:, None] + numbers * STRIDE
    return mix(shifted)


def _top_bits(bits: Tensor, count: int) -> Tensor:
    """Return the highest bits as a non-negative integer."""
    top: Tensor = (bits >> (64 - count)) & (2**count - 1)
    return top
