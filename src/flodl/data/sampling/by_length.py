"""Batches of samples of similar length, in random order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flodl.core.errors import DataError
from flodl.core.integers import as_integer, is_integer

from .order import permutation

# Sorting more samples at once makes batches more alike and less random.
BATCHES_PER_GROUP = 50


class LengthGroupedSampler:
    """Every sample once; the samples of a batch have similar lengths, and batches come in random order.

    The samples are shuffled, and each group of 50 batches is sorted by length. An incomplete batch is the
    last one.

    >>> sampler = LengthGroupedSampler([5, 1, 9, 1, 5, 9], batch_size=2)
    >>> order = sampler.order(6, seed=0, epoch=0, device=torch.device("cpu")).view(3, 2).tolist()
    >>> sorted(map(sorted, order))
    [[0, 4], [1, 3], [2, 5]]
    """

    def __init__(self, lengths: Sequence[int] | np.ndarray[Any, Any] | Tensor, batch_size: int) -> None:
        try:
            self.lengths = torch.as_tensor(lengths, device="cpu").flatten().to(torch.int64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"lengths={lengths!r:.100} are not numbers ({error}). Pass the length of each sample, "
                "such as [5, 1, 9]."
            ) from None
        batch_size = as_integer(batch_size)
        if not is_integer(batch_size, at_least=1):
            raise DataError(f"batch_size={batch_size!r}. Pass an integer >= 1.")
        self.batch_size = batch_size

    def order(self, count: int, *, seed: int, epoch: int, device: torch.device) -> Tensor:
        self.length(count)
        shuffled = permutation(count, seed=seed, epoch=epoch)
        size = self.batch_size * BATCHES_PER_GROUP
        groups = torch.arange(count) // size
        longest = int(self.lengths.max()) + 1 if count else 1
        # A stable sort by group, then length: equal lengths stay in random order.
        sorted_ = shuffled[torch.argsort(groups * longest + self.lengths[shuffled], stable=True)]
        whole = count // self.batch_size
        batches = sorted_[: whole * self.batch_size].view(whole, self.batch_size)
        mixed = batches[permutation(whole, seed=seed, epoch=epoch)].flatten()
        return torch.cat([mixed, sorted_[whole * self.batch_size :]]).to(device, non_blocking=True)

    def length(self, count: int) -> int:
        if len(self.lengths) != count:
            raise DataError(
                f"LengthGroupedSampler: {len(self.lengths)} lengths for {count} samples. Pass one per sample."
            )
        return count
