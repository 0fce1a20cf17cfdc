"""Data that come one after another and may have no known length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import islice
from typing import Any, NoReturn

import torch
from torch.utils.data import DataLoader

from flodl.core.errors import CursorError, DataError
from flodl.core.rng_state import preserve_rng_state

from ..batch import named
from ..sampling.epoch import Epoch
from ..sampling.global_rng import seed_globals
from ..sampling.order import sample_keys, stream_key
from .collate import stacked_rows
from .samples import Collate, Transform

_BLOCK = 1024  # keys drawn at once
Part = tuple[int, int]  # its number, and how many there are
WHOLE: Part = (0, 1)
_ENDED = "ended"  # the state behind a ragged batch: a source may have gone back to its start by then


class Stream:
    """An iterable read in its own order, or through a buffer that shuffles it.

    A position is the number of items given. Where the source can tell and take back its state (`state_dict`,
    `load_state_dict`) and there is no buffer, a resume goes there at once; otherwise the items before it are
    read again and left out.
    """

    def __init__(
        self,
        source: Any,
        *,
        transform: Transform | None = None,
        collate: Collate | None = None,
        names: Sequence[str] | None = None,
        buffer: int = 0,
    ) -> None:
        self.source = source
        self.transform = transform
        self.collate = collate
        self.names = names
        self.buffer = buffer
        self.num_samples = _length(source)
        self._keeps_state = not buffer and all(
            hasattr(source, method) for method in ("state_dict", "load_state_dict")
        )
        self._at_first = self._state()
        self._begun = False

    def batches(self, epoch: Epoch, *, part: Part = WHOLE) -> Iterator[tuple[Any, int, Any]]:
        """Give (batch, position behind it, state of the source there) from the start of an epoch's plan on.

        A batch size of None means that the items are batches already. Of several `part`s, positions and
        randomness are each part's own.
        """
        size = epoch.batch_size
        items = self._items(epoch, part)
        position = epoch.start
        while True:
            with preserve_rng_state():
                taken = list(islice(items, size or 1))
            if not taken or (epoch.drop_last and size is not None and len(taken) < size):
                return
            position += len(taken)
            batch = taken[0] if size is None else (self.collate or stacked_rows)(taken)
            ended = size is not None and len(taken) < size
            yield named(batch, self.names), position, _ENDED if ended else self._state()

    def refuse_nothing(self, epoch: int) -> NoReturn:
        """Say why an epoch has no batch."""
        if self.is_iterator and epoch > 0:
            raise DataError(
                f"the source is an iterator and has nothing left for epoch {epoch}. "
                "Give something that can be iterated again, such as a list or an object with __iter__."
            )
        raise DataError(
            "the source gives no batch. Give at least one sample, and one full batch if drop_last."
        )

    @property
    def order_name(self) -> str:
        """What its order depends on, in words."""
        if self.buffer:
            return f"a buffer of {self.buffer}"
        source = self.source
        if not isinstance(source, DataLoader):
            return "that of the source"
        by = f"batch_size={source.batch_size}, {type(source.sampler).__name__}"
        if source.batch_size is None:
            by = type(source.sampler if source.batch_sampler is None else source.batch_sampler).__name__
        return f"that of a DataLoader({by}, num_workers={source.num_workers})"

    @property
    def is_iterator(self) -> bool:
        """Whether what it has given is gone."""
        return isinstance(self.source, Iterator) and iter(self.source) is self.source

    def _items(self, epoch: Epoch, part: Part) -> Iterator[Any]:
        """Give the items from a position on, transformed, each with the generators seeded for its place."""
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch.number)
        if epoch.source_state == _ENDED:
            return
        goes_there = epoch.source_state is not None and self._keeps_state
        skipped = 0 if goes_there else epoch.start
        if self._keeps_state:
            self.source.load_state_dict(deepcopy(epoch.source_state if goes_there else self._at_first))
        self._refuse_second_start(epoch.start)
        ordered = self._shuffled(epoch, part, epoch.start - skipped)
        if sum(1 for _ in islice(ordered, skipped)) < skipped:
            raise CursorError(
                f"the source ended before item {epoch.start}, where the cursor stands. "
                "Give the source that the cursor was saved with, or call set_epoch to start anew."
            )
        for item, key in zip(ordered, _keys(_key_of(epoch, "augment", part), epoch.start)):
            if self.transform is None:
                yield item
            else:
                seed_globals(key)
                yield self.transform(item)

    def _shuffled(self, epoch: Epoch, part: Part, first: int) -> Iterator[Any]:
        raw = self._raw(_key_of(epoch, "source", part), first)
        if not self.buffer:
            yield from raw
            return
        held: list[Any] = []
        choices = _keys(_key_of(epoch, "order", part), 0)
        for item in raw:
            if len(held) < self.buffer:
                held.append(item)
                continue
            at = next(choices) % len(held)
            held[at], item = item, held[at]
            yield item
        while held:
            at = next(choices) % len(held)
            held[at], held[-1] = held[-1], held[at]
            yield held.pop()

    def _raw(self, key: int, first: int) -> Iterator[Any]:
        # Where an order is drawn at the beginning, as a torch loader does, it is that of the whole epoch.
        seed_globals(next(_keys(key, 0)))
        if isinstance(self.source, DataLoader) and self.source.persistent_workers:
            self.source._iterator = None  # workers that stay would go on with random states of their own
        iterator = iter(self.source)
        for item_key in _keys(key, first):
            seed_globals(item_key)
            try:
                item = next(iterator)
            except StopIteration:
                return
            yield item

    def _state(self) -> Any:
        # A copy, as the source gets one: it may go on writing to what it gave or was given.
        return deepcopy(self.source.state_dict()) if self._keeps_state else None

    def _refuse_second_start(self, start: int) -> None:
        if start and self._begun and not self._keeps_state and self.is_iterator:
            raise DataError(
                "the source is an iterator, which cannot go on after its loop was left: what it has given is "
                "gone. Give something that can be iterated again, such as an object with __iter__."
            )
        self._begun = True


def _length(source: Any) -> int | None:
    """Give the length of a source that has one; torch's loader only claims to, over an iterable."""
    try:
        return len(source)
    except TypeError:
        return None


def _key_of(epoch: Epoch, purpose: str, part: Part) -> int:
    """Give the key of one use of randomness; a stream in one part draws what it draws without workers."""
    number, count = part
    return stream_key(epoch.seed, epoch.number, purpose if count == 1 else f"{purpose}/{number}/{count}")


def _keys(key: int, start: int) -> Iterator[int]:
    """Give the keys of the positions from `start` on, without end."""
    while True:
        yield from sample_keys(key, torch.arange(start, start + _BLOCK)).tolist()
        start += _BLOCK
