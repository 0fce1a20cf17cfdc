"""The whole data set on the device: the order, the gather and the augmentation happen there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flodl.core.errors import DataError

from ..augment.augmentation import Augmentation, augmented, draws_by_chance
from ..augment.fused import Fused
from ..batch import Handed
from ..sampling.epoch import Epoch
from ..sampling.order import sample_keys
from ..sampling.random_numbers import Chance, EpochChance
from ..sampling.samplers import RandomSampler, Sampler, SequentialSampler
from ..sources.source import Gathered
from ..transfer.prefetch import Ahead

_AHEAD = 8  # batches made at once, where they are small


@dataclass(frozen=True)
class _Drawn:
    """The order of an epoch, and what is random about its samples."""

    name: tuple[int, ...]
    order: Tensor
    chance: EpochChance


class Resident:
    """Gives batches without the host touching the data: a slice of the order, a gather, the augmentation.

    Order and keys of the epoch lie in tensors that keep their place in memory from epoch to epoch, so a
    captured step may read batches by position (`take`).
    """

    def __init__(
        self, source: Gathered, sampler: Sampler, augment: Augmentation | None, *, is_copy: bool = False
    ) -> None:
        self.source, self.sampler, self.augment = source, sampler, augment
        self._now: _Drawn | None = None
        self._next: _Drawn | None = None
        # What the user may still write to is read when its batch is due.
        beside = is_copy and source.device.type == "cuda" and draws_by_chance(augment)
        self._fused = Fused.for_augment(augment) if beside else None
        # Code of the user's is called no earlier than it has to be.
        most = _AHEAD if augment is None or self._fused is not None else 1
        self._ahead = Ahead(source.device, most=most) if beside else None
        # Other samplers may be told something by the user at any time, and are asked again.
        self._knows_order = type(sampler) in (RandomSampler, SequentialSampler)
        self._can_go_on = source.device.type == "cuda" and self._knows_order
        self._was_taken = False

    def begin(self, epoch: Epoch) -> Tensor:
        """Bring order and keys to an epoch; gives the order."""
        if self._ahead is not None:
            # Batches that are still in the making read what is written here, or wrote it.
            self._ahead.side.current().wait_stream(self._ahead.side.stream)
        if self._now is None or self._now.name != epoch.name or not self._knows_order:
            drawn = self._next if self._next is not None and self._next.name == epoch.name else None
            self._now, self._next = self._taken_over(drawn or self._drawn(epoch)), None
        return self._now.order

    def batches(self, epoch: Epoch) -> Iterator[Handed]:
        """Give the rest of an epoch."""
        made = self._made(epoch)
        return made if self._ahead is None else self._ahead.run(made)

    def _made(self, epoch: Epoch) -> Iterator[Handed]:
        order = self.begin(epoch)
        assert self._now is not None
        chance = self._now.chance
        for start, stop in epoch.spans(len(order)):
            samples = order[start:stop]
            if self.augment is None:
                yield Handed(self.source.take(samples), stop)
            else:
                yield Handed(self._augmented(samples, chance, start, stop), stop)
        if self._can_go_on:
            # A hundred small kernels. At the start of an epoch, where metrics have just been read and the
            # device waits for work, their launches would be seen; now it still has steps to do.
            with suppress(torch.OutOfMemoryError):  # then they are drawn when they are due
                following = self._drawn(replace(epoch, number=epoch.number + 1))
                following.chance.draw_like(chance)
                self._next = following

    def _augmented(self, samples: Tensor, chance: EpochChance, start: int, stop: int) -> Any:
        assert self.augment is not None
        # flodl's own augmentations, which are all that there are then, leave draws as they are.
        drawn = chance.between(start, stop, shared=self._fused is not None)
        batch = None if self._fused is None else self._fused.taken(self.source, samples, drawn)
        return augmented(self.augment, self.source.take(samples), drawn) if batch is None else batch

    def _drawn(self, epoch: Epoch) -> _Drawn:
        order = epoch.order(self.sampler, self.source.num_samples, self.source.device)
        keys = sample_keys(epoch.key, torch.arange(len(order), device=order.device))
        return _Drawn(epoch.name, order, EpochChance(keys))

    def _taken_over(self, drawn: _Drawn) -> _Drawn:
        """Give what was drawn in the memory of the epoch before, where it has the same length."""
        now = self._now
        if now is not None and self._was_taken and len(now.order) != len(drawn.order):
            raise DataError(
                f"take has read an order of {len(now.order)} samples, and that of epoch {drawn.name[1]} has "
                f"{len(drawn.order)}: it lies elsewhere, and a captured step would still read the old one. "
                "Give a sampler whose epochs all have the same length, or a new loader."
            )
        if now is None or now.order.shape != drawn.order.shape:
            return replace(drawn, order=drawn.order.clone())  # what a sampler gives may be its own
        self._now = replace(now, name=())  # until all of it is there
        now.order.copy_(drawn.order)
        drawn.chance.keys = now.chance.keys.copy_(drawn.chance.keys)
        return replace(drawn, order=now.order)

    def take(self, positions: Any, epoch: Epoch) -> Any:
        """Give the batch at these positions of the epoch; nothing here waits for the device."""
        if self._now is None or not self._now.name:
            raise DataError("take reads the order of an epoch, and none was begun. Call begin_epoch() first.")
        if self._now.name != epoch.name:
            raise DataError(
                f"take would read the order of epoch {self._now.name[1]}, and the loader is at epoch "
                f"{epoch.number}. Call begin_epoch() again."
            )
        self._was_taken = True
        rows = _row_of_numbers(positions, self._now.order.device)
        try:
            chosen = self._now.order.index_select(0, rows)
        except IndexError:  # only on the CPU: elsewhere it would have to be waited for
            raise DataError(
                f"take: a position is beyond the epoch, which has {len(self._now.order)} samples. "
                f"Give numbers from 0 to {len(self._now.order) - 1}."
            ) from None
        batch = self.source.take(chosen)
        if self.augment is None:
            return batch
        return augmented(self.augment, batch, Chance(self._now.chance.keys.index_select(0, rows)))

    def close(self) -> None:
        """Nothing runs beside a resident loader."""


def _row_of_numbers(positions: Any, device: torch.device) -> Tensor:
    """Give positions as a tensor; only on the CPU from something else, for a copy to a device may wait."""
    rows: Tensor | None = positions if isinstance(positions, Tensor) else None
    if rows is None and device.type == "cpu":
        with suppress(TypeError, ValueError, RuntimeError, OverflowError):
            rows = torch.tensor(positions, device=device)
    if rows is None:
        what = f"a {type(positions).__name__}"
    elif rows.device != device or rows.dim() > 1 or not _holds_whole_numbers(rows):
        what = f"{tuple(rows.shape)} {rows.dtype} on {rows.device}"
    else:
        return rows if rows.dtype in (torch.int32, torch.int64) else rows.to(torch.int64)
    raise DataError(
        f"take: the positions are {what}. Give one row of whole numbers on {device}, such as "
        "torch.arange(0, 128, device=loader.device)."
    )


def _holds_whole_numbers(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
