"""The plan of one epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .order import spans, stream_key
from .samplers import Sampler


@dataclass(frozen=True)
class Epoch:
    """One epoch as the loader asks for it, from a position on."""

    seed: int
    number: int
    start: int
    batch_size: int | None
    drop_last: bool
    source_state: Any = None

    @property
    def name(self) -> tuple[int, ...]:
        """What its order and everything random about it follow from."""
        return self.seed, self.number

    @property
    def key(self) -> int:
        """The key from which every sample of the epoch has its randomness."""
        return stream_key(self.seed, self.number, "augment")

    def spans(self, num_samples: int) -> list[tuple[int, int]]:
        """Give the positions of each batch."""
        assert self.batch_size is not None
        return spans(self.start, num_samples, self.batch_size, drop_last=self.drop_last)

    def order(self, sampler: Sampler, count: int, device: torch.device) -> torch.Tensor:
        """Give the index of the sample at each position."""
        return sampler.order(count, seed=self.seed, epoch=self.number, device=device)
