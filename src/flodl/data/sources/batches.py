"""Data that makes whole batches itself, such as texts of unequal lengths."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..sampling.samplers import Sampler


class BatchMaker(Protocol):
    """Makes the batches of a loader on the host; `reason` says how, and `sampler` may replace shuffling.

    It may have an attribute `is_random`, False if it does not use the keys.
    """

    num_samples: int
    reason: str
    sampler: Sampler | None
    # What it reads, as plain data for the record of a run.
    description: dict[str, Any]

    def make(self, indices: Tensor, keys: Tensor) -> Any:
        """Return these samples as a batch; the keys are the random keys of their positions."""
        ...


@runtime_checkable
class BatchSource(Protocol):
    """A source that makes its own batches, once the loader has told it their size and device."""

    num_samples: int

    def batch_maker(self, batch_size: int, device: torch.device) -> BatchMaker:
        """Return what makes batches of this size for a device."""
        ...


class Batches:
    """A source together with the object that makes its batches, as a loader reads it."""

    def __init__(self, source: BatchSource) -> None:
        self.source = source
        self.num_samples = source.num_samples
        self._maker: BatchMaker | None = None

    @property
    def maker(self) -> BatchMaker:
        """What makes the batches."""
        assert self._maker is not None
        return self._maker

    def prepare(self, batch_size: int, device: torch.device) -> None:
        """Tell the source the size of batches and their device."""
        self._maker = self.source.batch_maker(batch_size, device)
