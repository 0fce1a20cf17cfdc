"""The plan of one epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .order import spans, stream_key
from .samplers import Sampler


@dataclass(frozen=True)
class Epoch:
    """One epoch, from a start position."""

    seed: int
    number: int
    start: int
    batch_size: int | None
    drop_last: bool
    source_state: Any = None

    @property
    def identity(self) -> tuple[int, ...]:
        """The values that determine its order and random numbers."""
        return self.seed, self.number

    @property
    def key(self) -> int:
        """The key from which the random numbers of its samples are derived."""
        return stream_key(self.seed, self.number, "augment")

    def spans(self, num_samples: int) -> list[tuple[int, int]]:
        """Return the start and stop position of each batch."""
        assert self.batch_size is not None
        return spans(self.start, num_samples, self.batch_size, drop_last=self.drop_last)

    def order(self, sampler: Sampler, count: int, device: torch.device) -> torch.Tensor:
        """Return the index of the sample at each position."""
        return sampler.order(count, seed=self.seed, epoch=self.number, device=device)
