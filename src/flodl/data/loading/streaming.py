"""Batches made on the host and sent to the device ahead of their use."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.utils.data import DataLoader, default_collate

from ..augment.augmentation import Augmentation, augmented, draws_by_chance
from ..augment.fused import Fused
from ..batch import Handed, tensors_in
from ..sampling.epoch import Epoch
from ..sampling.order import sample_keys
from ..sampling.random_numbers import Chance, PassingChance
from ..sampling.samplers import Sampler
from ..sources.columns import Columns
from ..sources.samples import Samples
from ..sources.source import Gathered
from ..sources.streams import Stream
from ..transfer.pinned_copy import Feed, moved
from ..transfer.prefetch import Ahead
from .stream_workers import StreamWorkers
from .workers import FetcherInWorker, InProcess, Workers, requests_of

_CPU = torch.device("cpu")


class Streaming:
    """Host batches in the order of the epoch, moved to the device, then augmented there."""

    def __init__(
        self,
        source: Gathered | Samples | Stream,
        sampler: Sampler,
        augment: Augmentation | None,
        *,
        device: torch.device,
        num_workers: int,
        prefetch: int,
        room: Callable[[], int | None],
    ) -> None:
        self.source, self.sampler, self.augment, self.device = source, sampler, augment, device
        self._host: InProcess | Workers | StreamWorkers | None = None
        if not isinstance(source, Stream):
            self._host = Workers(FetcherInWorker(source), num_workers) if num_workers else InProcess(source)
        elif num_workers:
            self._host = StreamWorkers(source, num_workers)
        self._in_workers = num_workers > 0
        on_cuda = device.type == "cuda"
        self._feed = Feed(device, depth=prefetch, room=room) if on_cuda else None
        # Code of the user's that makes samples in this process may use the device: it runs when it is due.
        on_host = num_workers > 0 or (isinstance(source, Gathered) and source.device.type == "cpu")
        beside = on_cuda and on_host and augment is not None and draws_by_chance(augment)
        self._ahead = Ahead(device) if beside else None
        self._fused = Fused.for_augment(augment) if on_cuda else None

    def batches(self, epoch: Epoch) -> Iterator[Handed]:
        on_host = self._on_host(epoch)
        # Items that come as batches are the user's own, and an augmentation may change them in place.
        is_own = self.augment is not None and epoch.batch_size is None
        if self._feed is not None:
            sent = self._feed.run(on_host, fresh=self._gives_new_memory(epoch.batch_size))
        else:
            sent = moved(on_host, self.device, copies=is_own)
        if self.augment is None:
            return sent
        made = self._augmented(sent, self.augment, epoch)
        return made if self._ahead is None else self._ahead.run(made)

    def close(self) -> None:
        """End the workers."""
        if self._host is not None:
            self._host.close()

    def _gives_new_memory(self, batch_size: int | None) -> bool:
        """Say whether each batch has memory of its own; code of the user's may fill the same again."""
        source = self.source
        if self._in_workers or isinstance(source, Columns):
            return True
        if isinstance(source, Gathered):
            return False
        if batch_size is not None:
            return source.collate is None
        given = source.source if isinstance(source, Stream) and source.transform is None else None
        if not isinstance(given, DataLoader):
            return False
        return given.num_workers > 0 or given.collate_fn is default_collate

    def _on_host(self, epoch: Epoch) -> Iterator[Handed]:
        if isinstance(self._host, StreamWorkers):
            return self._host.batches(epoch)
        return self._from_stream(epoch) if isinstance(self.source, Stream) else self._from_order(epoch)

    def _from_order(self, epoch: Epoch) -> Iterator[Handed]:
        assert isinstance(self._host, InProcess | Workers)
        assert not isinstance(self.source, Stream)
        order = epoch.order(self.sampler, self.source.num_samples, _CPU)
        spans = epoch.spans(len(order))
        if isinstance(self._host, InProcess) and isinstance(self.source, Gathered):
            for start, stop in spans:
                yield Handed(self.source.take(order[start:stop].to(self.source.device)), stop)
            return
        made = self._host.batches(requests_of(order, epoch.key, spans))
        for (_, stop), batch in zip(spans, made):
            yield Handed(batch, stop)

    def _from_stream(self, epoch: Epoch) -> Iterator[Handed]:
        assert isinstance(self.source, Stream)
        position = epoch.start
        for batch, position, state in self.source.batches(epoch):
            yield Handed(batch, position, state)
        if position == 0:
            self.source.refuse_nothing(epoch.number)

    def _augmented(self, sent: Iterator[Handed], augment: Augmentation, epoch: Epoch) -> Iterator[Handed]:
        start, passing = epoch.start, PassingChance(epoch.key, self.device)
        for handed in sent:
            # flodl's own augmentations, which are all that there are then, leave draws as they are.
            chance = passing.between(start, handed.position, shared=self._fused is not None)
            if epoch.batch_size is None:  # one position, and as many samples as the item has
                rows = torch.arange(len(tensors_in(handed.batch)[0]), device=self.device)
                chance = Chance(sample_keys(chance.keys, rows))
            batch = None if self._fused is None else self._fused.augmented(handed.batch, chance)
            if batch is None:
                batch = augmented(augment, handed.batch, chance)
            yield Handed(batch, handed.position, handed.source_state)
            start = handed.position
