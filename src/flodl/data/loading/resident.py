"""The backend for data that is resident on the device: ordered, gathered and augmented there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flodl.core.errors import DataError
from flodl.core.formats import a_type

from ..augment.augmentation import Augmentation, apply_augmentation, draws_from_chance
from ..augment.fused import FusedAugmentation
from ..augment.masks import warn_of_masks
from ..batch import PositionedBatch
from ..sampling.epoch import Epoch
from ..sampling.lazy_order import LazyOrder, Order
from ..sampling.order import sample_keys
from ..sampling.random_numbers import Chance, EpochChance, StreamChance
from ..sources.source import GatherSource
from ..transfer.prefetch import Prefetcher

_MAX_GROUP = 8  # batches prepared at once, if they are small


@dataclass(frozen=True)
class _DrawnEpoch:
    """The order and the random numbers of an epoch; on a CUDA device both are stored."""

    identity: tuple[Any, ...]
    order: Order
    chance: EpochChance | StreamChance


class Resident:
    """Yields batches without the host reading the data: a slice of the order, a gather, the augmentation.

    The tensors with the order and keys of the epoch keep their data pointers across epochs, so a captured
    step may read batches by position (`take`).
    """

    def __init__(self, source: GatherSource, augment: Augmentation | None, *, is_copy: bool = False) -> None:
        self.source, self.augment = source, augment
        self.current: _DrawnEpoch | None = None
        self.upcoming: _DrawnEpoch | None = None
        # Only a copy is read ahead: the user may still write to the original.
        prefetches = is_copy and source.device.type == "cuda" and draws_from_chance(augment)
        self.fused = FusedAugmentation.for_augment(augment) if prefetches else None
        # User code is called as late as possible.
        max_group = _MAX_GROUP if augment is None or self.fused is not None else 1
        self.prefetcher = Prefetcher(source.device, max_group=max_group) if prefetches else None
        self.draws_next_epoch = source.device.type == "cuda"  # if the sampler has a fixed order
        self._take_was_called = self._has_augmented = False

    def begin(self, epoch: Epoch) -> Order:
        """Switch the order and the keys to an epoch; return the order."""
        if self.prefetcher is not None:
            # Batches in progress on the side stream read or wrote the tensors that are written here.
            self.prefetcher.side.current().wait_stream(self.prefetcher.side.stream)
        # The user may change the state of other samplers at any time, so they are called again.
        if self.current is None or self.current.identity != epoch.identity or not epoch.has_fixed_order:
            is_drawn = self.upcoming is not None and self.upcoming.identity == epoch.identity
            drawn = self.upcoming if is_drawn else None
            self.current, self.upcoming = self._in_old_memory(drawn or self.draw_epoch(epoch)), None
        return self.current.order

    def batches(self, epoch: Epoch) -> Iterator[PositionedBatch]:
        """Yield the rest of an epoch."""
        batches = self._make_batches(epoch)
        return batches if self.prefetcher is None else self.prefetcher.run(batches)

    def _make_batches(self, epoch: Epoch) -> Iterator[PositionedBatch]:
        order = self.begin(epoch)
        assert self.current is not None
        chance = self.current.chance
        for start, stop in epoch.spans(len(order)):
            samples = order[start:stop]
            if self.augment is None:
                yield PositionedBatch(self.source.take(samples), stop)
            else:
                yield PositionedBatch(self._augment(samples, chance, start, stop), stop)
        is_end = epoch.stop is None or epoch.stop >= len(order)
        if self.draws_next_epoch and epoch.has_fixed_order and is_end:
            # These are a hundred small kernels. At the start of an epoch the device would wait for their
            # launches, because metrics have just been read; now it still has steps queued.
            with suppress(torch.OutOfMemoryError):  # then drawn at the start of the epoch
                following = self.draw_epoch(replace(epoch, number=epoch.number + 1))
                if isinstance(following.chance, EpochChance) and isinstance(chance, EpochChance):
                    following.chance.draw_same_as(chance)
                self.upcoming = following

    def _augment(self, samples: Tensor, chance: EpochChance | StreamChance, start: int, stop: int) -> Any:
        assert self.augment is not None
        # Only flodl's own augmentations are fused, and they do not write to draws.
        drawn = chance.between(start, stop, shared=self.fused is not None)
        batch = None if self.fused is None else self.fused.gather(self.source, samples, drawn)
        if batch is not None:
            return batch
        batch = self.source.take(samples)
        if not self._has_augmented:
            self._has_augmented = True
            warn_of_masks(self.augment, batch)
        return apply_augmentation(self.augment, batch, drawn)

    def draw_epoch(self, epoch: Epoch) -> _DrawnEpoch:
        """Draw the order and the random numbers of an epoch."""
        order = epoch.order(self.source.num_samples, self.source.device)
        if isinstance(order, LazyOrder):
            if order.device.type != "cuda":
                return _DrawnEpoch(epoch.identity, order, StreamChance(epoch.key, order.device))
            order = order.stored()
        keys = sample_keys(epoch.key, torch.arange(len(order), device=order.device))
        return _DrawnEpoch(epoch.identity, order, EpochChance(keys))

    def _in_old_memory(self, drawn: _DrawnEpoch) -> _DrawnEpoch:
        """Return the drawn epoch in the memory of the previous one, if it has the same length."""
        old = self.current
        if old is not None and self._take_was_called and len(old.order) != len(drawn.order):
            raise DataError(
                f"take has read an order of {len(old.order)} samples, but epoch {drawn.identity[1]} has "
                f"{len(drawn.order)}. It needs new memory, and a captured step would still read the old "
                "order. Use a sampler whose epochs all have the same length, or a new loader."
            )
        if isinstance(drawn.order, LazyOrder):
            return drawn
        if old is None or isinstance(old.order, LazyOrder) or old.order.shape != drawn.order.shape:
            return replace(drawn, order=drawn.order.clone())  # the sampler may keep and change its tensor
        assert isinstance(old.chance, EpochChance)
        assert isinstance(drawn.chance, EpochChance)
        self.current = replace(old, identity=())  # invalid until both copies are done
        old.order.copy_(drawn.order)
        drawn.chance.keys = old.chance.keys.copy_(drawn.chance.keys)
        return replace(drawn, order=old.order)

    def take(self, positions: Any, epoch: Epoch) -> Any:
        """Return the batch at these positions of the epoch, without synchronizing with the device."""
        if self.current is None or not self.current.identity:
            raise DataError("take needs the order of an epoch, but none has begun. Call begin_epoch() first.")
        if self.current.identity != epoch.identity:
            raise DataError(
                f"take would read the order of epoch {self.current.identity[1]}, but the loader is at epoch "
                f"{epoch.number}. Call begin_epoch() again."
            )
        self._take_was_called = True
        order, chance = self.current.order, self.current.chance
        indices = _as_indices(positions, order.device)
        try:
            samples = _select(order, indices)
        except IndexError:  # only on the CPU: other devices would have to synchronize
            raise DataError(
                f"take: a position is beyond the epoch, which has {len(order)} samples. "
                f"Pass positions from 0 to {len(order) - 1}."
            ) from None
        batch = self.source.take(samples)
        if self.augment is None:
            return batch
        # A captured step reads the keys of the current epoch from memory.
        if isinstance(chance, EpochChance):
            keys = chance.keys.index_select(0, indices)
        else:
            keys = sample_keys(epoch.key, indices.to(torch.int64).view(-1))
        return apply_augmentation(self.augment, batch, Chance(keys))

    def close(self) -> None:
        """Do nothing: a resident loader has no processes."""


def _select(order: Order, positions: Tensor) -> Tensor:
    if isinstance(order, Tensor):
        return order.index_select(0, positions)
    if positions.numel() and not 0 <= int(positions.min()) <= int(positions.max()) < len(order):
        raise IndexError
    return order.at(positions.to(torch.int64).view(-1))


def _as_indices(positions: Any, device: torch.device) -> Tensor:
    """Return positions as a tensor; lists only for the CPU, because a copy to a device may synchronize."""
    rows: Tensor | None = positions if isinstance(positions, Tensor) else None
    if rows is None and device.type == "cpu":
        with suppress(TypeError, ValueError, RuntimeError, OverflowError):
            rows = torch.tensor(positions, device=device)
    if rows is None:
        what = f"{a_type(positions)}"
    elif rows.device != device or rows.dim() > 1 or not _is_integer_tensor(rows):
        what = f"{tuple(rows.shape)} {rows.dtype} on {rows.device}"
    else:
        return rows if rows.dtype in (torch.int32, torch.int64) else rows.to(torch.int64)
    raise DataError(
        f"take: the positions are {what}. Pass a 1-d tensor of integers on {device}, such as "
        "torch.arange(0, 128, device=loader.device)."
    )


def _is_integer_tensor(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
