"""The order of an epoch and the random key of each sample, as pure functions of (seed, epoch, position).

Everything is derived from one 64-bit integer hash, which returns the same bits on every device. There is no
state: the middle of the ninth epoch costs no more than its start.

Up to `MAX_SORTED` samples, the random order is that of the samples' hashes, which are sorted. This order must
not change: saved cursors depend on it. For more samples, `lazy_order` computes each index on demand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_SORTED = 2**24  # sorting that many takes one or two seconds

_WRAP = 2**64


def _signed(number: int) -> int:
    """Interpret 64 bits as a signed integer."""
    number %= _WRAP
    return number - _WRAP if number >= _WRAP // 2 else number


STRIDE = _signed(0x9E3779B97F4A7C15)  # the golden ratio: spreads consecutive positions
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def stream_key(seed: int, epoch: int, purpose: str) -> int:
    """Return the 64-bit key for one use of randomness in one epoch.

    >>> stream_key(0, 0, "order") == stream_key(0, 0, "order")
    True
    >>> len({stream_key(0, 0, "order"), stream_key(0, 1, "order"), stream_key(1, 0, "order")})
    3
    """
    digest = hashlib.sha256(f"{seed}/{epoch}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def mix(bits: Tensor) -> Tensor:
    """Hash 64-bit integers elementwise (the finalizer of SplitMix64)."""
    bits = (bits ^ ((bits >> 30) & (2**34 - 1))) * _FIRST
    bits = (bits ^ ((bits >> 27) & (2**37 - 1))) * _SECOND
    return bits ^ ((bits >> 31) & (2**33 - 1))


def sample_keys(key: int | Tensor, positions: Tensor) -> Tensor:
    """Return the key of the sample at each position of an epoch.

    >>> key = stream_key(0, 3, "augment")
    >>> whole = sample_keys(key, torch.arange(100))
    >>> torch.equal(sample_keys(key, torch.arange(60, 64)), whole[60:64])
    True
    """
    return mix(positions * STRIDE + key)


def permutation(count: int, *, seed: int, epoch: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the integers below `count` in the order of an epoch, the same on every device.

    >>> permutation(8, seed=0, epoch=0).tolist()
    [6, 5, 2, 3, 4, 0, 1, 7]
    >>> permutation(8, seed=0, epoch=1).tolist()
    [4, 5, 7, 6, 2, 3, 0, 1]
    """
    positions = torch.arange(count, device=device)
    keys = sample_keys(stream_key(seed, epoch, "order"), positions)
    return torch.argsort(keys, stable=True)


@dataclass(frozen=True)
class Spans:
    """The start and stop position of each batch; computed while they are iterated.

    >>> list(Spans(0, 10, 4)), len(Spans(0, 10**12, 4))
    ([(0, 4), (4, 8), (8, 10)], 250000000000)
    """

    start: int
    stop: int
    size: int

    def __len__(self) -> int:
        return len(range(self.start, self.stop, self.size))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for at in range(self.start, self.stop, self.size):
            yield at, min(at + self.size, self.stop)


def spans(start: int, stop: int, size: int, *, drop_last: bool) -> Spans:
    """Split the positions from `start` to `stop` into batches.

    >>> list(spans(4, 10, 4, drop_last=True)), list(spans(10, 10, 4, drop_last=True))
    ([(4, 8)], [])
    """
    return Spans(start, stop - (stop - start) % size if drop_last else stop, size)
