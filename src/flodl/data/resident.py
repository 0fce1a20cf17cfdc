"""The whole data set on the device: the order, the gather and the augmentation happen there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .ahead import Ahead
from .augment import Augmentation, augmented, draws_by_chance
from .batching import Epoch, Handed
from .chance import Chance, EpochChance
from .order import sample_keys
from .samplers import Sampler
from .sources.opening import Gathered


class Resident:
    """Gives batches without the host touching the data: a slice of the order, a gather, the augmentation.

    Order and keys of the epoch lie in tensors that keep their place in memory from epoch to epoch, so a
    captured step may read batches by position (`take`).
    """

    def __init__(self, source: Gathered, sampler: Sampler, augment: Augmentation | None) -> None:
        self.source, self.sampler, self.augment = source, sampler, augment
        self._order: Tensor | None = None
        self._keys: Tensor | None = None
        self._ready: tuple[int, int] | None = None
        beside = source.device.type == "cuda" and draws_by_chance(augment)
        self._ahead = Ahead(source.device) if beside else None

    def begin(self, epoch: Epoch) -> Tensor:
        """Bring order and keys to an epoch; gives the order."""
        if self._ahead is not None:
            # Batches that are still in the making read what is written here, or wrote it.
            torch.cuda.current_stream(self._ahead.device).wait_stream(self._ahead.stream)
        if self._ready != (epoch.seed, epoch.number) or self._order is None:
            order = epoch.order(self.sampler, self.source.num_samples, self.source.device)
            keys = sample_keys(epoch.key, torch.arange(len(order), device=order.device))
            self._order, self._keys = _in_place(self._order, order), _in_place(self._keys, keys)
            self._ready = (epoch.seed, epoch.number)
        return self._order

    def batches(self, epoch: Epoch) -> Iterator[Handed]:
        """Give the rest of an epoch."""
        made = self._made(epoch)
        return made if self._ahead is None else self._ahead.run(made)

    def _made(self, epoch: Epoch) -> Iterator[Handed]:
        order = self.begin(epoch)
        assert self._keys is not None
        chance = EpochChance(self._keys)
        for start, stop in epoch.spans(len(order)):
            batch = self.source.take(order[start:stop])
            if self.augment is not None:
                batch = augmented(self.augment, batch, chance.between(start, stop))
            yield Handed(batch, stop)

    def take(self, positions: Tensor) -> Any:
        """Give the batch at these positions of the epoch; nothing here waits for the device."""
        assert self._order is not None
        assert self._keys is not None
        batch = self.source.take(self._order.index_select(0, positions))
        if self.augment is None:
            return batch
        return augmented(self.augment, batch, Chance(self._keys.index_select(0, positions)))

    def close(self) -> None:
        """Nothing runs beside a resident loader."""


def _in_place(old: Tensor | None, new: Tensor) -> Tensor:
    return old.copy_(new) if old is not None and old.shape == new.shape else new
