"""The backend for streamed data: batches are made on the host and copied to the device ahead of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from ..augment.augmentation import Augmentation, apply_augmentation, draws_from_chance
from ..augment.fused import FusedAugmentation
from ..augment.masks import warn_of_masks
from ..batch import PositionedBatch, tensors_in
from ..sampling.epoch import Epoch
from ..sampling.lazy_order import Order
from ..sampling.order import sample_keys
from ..sampling.random_numbers import Chance, StreamChance
from ..sources.batches import Batches
from ..sources.columns import Columns
from ..sources.samples import Samples
from ..sources.source import GatherSource
from ..sources.streams import Stream
from ..transfer.pinned_copy import PinnedCopier, copy_to_device
from ..transfer.prefetch import Prefetcher
from .stream_workers import StreamWorkers
from .workers import InProcess, WorkerFetcher, Workers, batch_requests

_CPU = torch.device("cpu")


class Streaming:
    """Makes batches on the host in order, copies them to the device, and augments them there."""

    def __init__(
        self,
        source: GatherSource | Samples | Stream | Batches,
        augment: Augmentation | None,
        *,
        device: torch.device,
        num_workers: int,
        prefetch: int,
        usable_bytes: Callable[[], int | None],
    ) -> None:
        self.source, self.augment, self.device = source, augment, device
        self._host: InProcess | Workers | StreamWorkers | None = None
        if not isinstance(source, Stream):
            self._host = Workers(WorkerFetcher(source), num_workers) if num_workers else InProcess(source)
        elif num_workers:
            self._host = StreamWorkers(source, num_workers)
        self._in_workers = num_workers > 0
        self._has_augmented = False
        self._drawn: tuple[tuple[Any, ...], Order] | None = None
        on_cuda = device.type == "cuda"
        self.copier = PinnedCopier(device, depth=prefetch, usable_bytes=usable_bytes) if on_cuda else None
        # User code that makes samples in this process may use the device, so it must not run ahead.
        on_host = num_workers > 0 or (isinstance(source, GatherSource) and source.device.type == "cpu")
        prefetches = on_cuda and on_host and augment is not None and draws_from_chance(augment)
        self.prefetcher = Prefetcher(device) if prefetches else None
        self.fused = FusedAugmentation.for_augment(augment) if on_cuda else None

    def batches(self, epoch: Epoch) -> Iterator[PositionedBatch]:
        host_batches = self._host_batches(epoch)
        if self.copier is not None:
            batches = self.copier.run(host_batches, fresh=self._has_fresh_memory(epoch.batch_size))
        else:
            # Items that are whole batches belong to the user, and an augmentation may change them in place.
            copies = self.augment is not None and epoch.batch_size is None
            batches = copy_to_device(host_batches, self.device, copies=copies)
        if self.augment is None:
            return batches
        batches = self._augment(batches, self.augment, epoch)
        return batches if self.prefetcher is None else self.prefetcher.run(batches)

    def close(self) -> None:
        """End the workers."""
        if self._host is not None:
            self._host.close()

    def _has_fresh_memory(self, batch_size: int | None) -> bool:
        """Return whether each batch has its own memory; user code may reuse the same memory."""
        source = self.source
        if self._in_workers or isinstance(source, Columns | Batches):
            return True
        if isinstance(source, GatherSource):
            return False
        if batch_size is not None:
            return source.collate is None
        inner = source.source if isinstance(source, Stream) and source.transform is None else None
        if not isinstance(inner, DataLoader):
            return False
        return inner.num_workers > 0 or inner.collate_fn is default_collate

    def _host_batches(self, epoch: Epoch) -> Iterator[PositionedBatch]:
        if isinstance(self._host, StreamWorkers):
            return self._host.batches(epoch)
        return self._from_stream(epoch) if isinstance(self.source, Stream) else self._from_order(epoch)

    def _from_order(self, epoch: Epoch) -> Iterator[PositionedBatch]:
        assert isinstance(self._host, InProcess | Workers)
        assert not isinstance(self.source, Stream)
        if isinstance(self.source, Samples):
            self.source.check_length()
        order = self._order(epoch)
        spans = epoch.spans(len(order))
        if isinstance(self._host, InProcess) and isinstance(self.source, GatherSource):
            for start, stop in spans:
                yield PositionedBatch(self.source.take(order[start:stop].to(self.source.device)), stop)
            return
        if isinstance(self._host, InProcess) and isinstance(self.source, Batches):
            for start, stop in spans:
                keys = sample_keys(epoch.key, torch.arange(start, stop))
                yield PositionedBatch(self.source.maker.make(order[start:stop], keys), stop)
            return
        batches = self._host.batches(batch_requests(order, epoch.key, spans))
        for (_, stop), batch in zip(spans, batches):
            yield PositionedBatch(batch, stop)

    def _order(self, epoch: Epoch) -> Order:
        """Return the order of an epoch, which may be read in several parts."""
        assert not isinstance(self.source, Stream)
        if self._drawn is not None and self._drawn[0] == epoch.identity and epoch.has_fixed_order:
            return self._drawn[1]
        order = epoch.order(self.source.num_samples, _CPU)
        # Only parts are read again.
        self._drawn = None if epoch.stop is None else (epoch.identity, order)
        return order

    def _from_stream(self, epoch: Epoch) -> Iterator[PositionedBatch]:
        assert isinstance(self.source, Stream)
        position = epoch.start
        for batch, position, state in self.source.batches(epoch):
            yield PositionedBatch(batch, position, state)
        if position == 0:
            self.source.raise_no_batch(epoch.number)

    def _augment(
        self, batches: Iterator[PositionedBatch], augment: Augmentation, epoch: Epoch
    ) -> Iterator[PositionedBatch]:
        start, chances = epoch.start, StreamChance(epoch.key, self.device)
        for item in batches:
            # Only flodl's own augmentations are fused, and they do not write to draws.
            chance = chances.between(start, item.position, shared=self.fused is not None)
            if epoch.batch_size is None:  # one position for all samples of the item
                rows = torch.arange(len(tensors_in(item.batch)[0]), device=self.device)
                chance = Chance(sample_keys(chance.keys, rows))
            batch = None if self.fused is None else self.fused.augment(item.batch, chance)
            if batch is None:
                if not self._has_augmented:
                    self._has_augmented = True
                    warn_of_masks(augment, item.batch)
                batch = apply_augmentation(augment, item.batch, chance)
            yield PositionedBatch(batch, item.position, item.source_state)
            start = item.position
