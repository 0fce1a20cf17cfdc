"""The plan of one epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from flodl.core.errors import DataError

from .indices import check_indices, check_length
from .lazy_order import Order
from .order import Spans, spans, stream_key
from .samplers import (
    CustomSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SortedRandomSampler,
    WeightedSampler,
)

_FIXED = (RandomSampler, SequentialSampler, SortedRandomSampler)
_CHECKED = (*_FIXED, CustomSampler, WeightedSampler)


@dataclass(frozen=True)
class Epoch:
    """One epoch, from a start position."""

    seed: int
    number: int
    start: int
    batch_size: int | None
    drop_last: bool
    sampler: Sampler
    source_state: Any = None
    # The position at which reading stops; None is the end of the epoch.
    stop: int | None = None

    @property
    def identity(self) -> tuple[Any, ...]:
        """The values that determine its order and random numbers."""
        return self.seed, self.number, self.sampler

    @property
    def key(self) -> int:
        """The key from which the random numbers of its samples are derived."""
        return stream_key(self.seed, self.number, "augment")

    @property
    def has_fixed_order(self) -> bool:
        """Whether the order is the same if it is drawn again; users may change their own samplers."""
        return type(self.sampler) in _FIXED

    def spans(self, num_samples: int) -> Spans:
        """Return the start and stop position of each batch."""
        assert self.batch_size is not None
        if self.drop_last and self.start == 0 and num_samples < self.batch_size:
            raise DataError(
                f"epoch {self.number} has no batch: {num_samples} samples, batch_size={self.batch_size}, "
                "drop_last=True. Use a smaller batch_size or drop_last=False."
            )
        stop = num_samples if self.stop is None else min(self.stop, num_samples)
        return spans(self.start, stop, self.batch_size, drop_last=self.drop_last)

    def order(self, count: int, device: torch.device) -> Order:
        """Return the index of the sample at each position."""
        order = self.sampler.order(count, seed=self.seed, epoch=self.number, device=device)
        if type(self.sampler) not in _CHECKED:
            check_indices(order, count, self.number)
            check_length(len(order), self.sampler.length(count), self.number)
        return order
