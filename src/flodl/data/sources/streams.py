"""Data that come one after another and may have no known length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from flodl.core.errors import CursorError, DataError

from ..form import named
from ..order import sample_keys, stream_key
from ..seeding import globals_kept, seed_globals
from .samples import Collate, Transform, stacked

_BLOCK = 1024  # keys drawn at once
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
        self.collate = collate or stacked
        self.names = names
        self.buffer = buffer
        self.num_samples = len(source) if hasattr(source, "__len__") else None
        self._keeps_state = not buffer and all(
            hasattr(source, method) for method in ("state_dict", "load_state_dict")
        )
        self._at_first = source.state_dict() if self._keeps_state else None
        self._begun = False

    def batches(
        self, *, seed: int, epoch: int, start: int, size: int | None, drop_last: bool, state: Any
    ) -> Iterator[tuple[Any, int, Any]]:
        """Give (batch, position behind it, state of the source there) from a position on.

        A size of None means that the items are batches already.
        """
        items = self._items(seed, epoch, start, state)
        position = start
        while True:
            with globals_kept():
                taken = list(islice(items, size or 1))
            if not taken or (drop_last and size is not None and len(taken) < size):
                break
            position += len(taken)
            batch = taken[0] if size is None else self.collate(taken)
            ended = size is not None and len(taken) < size
            yield named(batch, self.names), position, _ENDED if ended else self._state()
        if position == 0:
            self._refuse_nothing(epoch)

    def _items(self, seed: int, epoch: int, start: int, state: Any) -> Iterator[Any]:
        """Give the items from a position on, transformed, each with the generators seeded for its place."""
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch)
        if state == _ENDED:
            return
        goes_there = state is not None and self._keeps_state
        skipped = 0 if goes_there else start
        if self._keeps_state:
            self.source.load_state_dict(state if goes_there else self._at_first)
        places = _keys(stream_key(seed, epoch, "augment"), start)
        self._refuse_second_start(start)
        ordered = self._shuffled(seed, epoch, start - skipped)
        if sum(1 for _ in islice(ordered, skipped)) < skipped:
            raise CursorError(
                f"the source ended before item {start}, where the cursor stands. "
                "Give the source that the cursor was saved with, or call set_epoch to start anew."
            )
        for item, key in zip(ordered, places):
            if self.transform is None:
                yield item
            else:
                seed_globals(key)
                yield self.transform(item)

    def _shuffled(self, seed: int, epoch: int, first: int) -> Iterator[Any]:
        raw = self._raw(stream_key(seed, epoch, "source"), first)
        if not self.buffer:
            yield from raw
            return
        held: list[Any] = []
        choices = _keys(stream_key(seed, epoch, "order"), 0)
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
        iterator = iter(self.source)
        for item_key in _keys(key, first):
            seed_globals(item_key)
            try:
                item = next(iterator)
            except StopIteration:
                return
            yield item

    def _state(self) -> Any:
        return self.source.state_dict() if self._keeps_state else None

    def _refuse_second_start(self, start: int) -> None:
        if start and self._begun and not self._keeps_state and iter(self.source) is self.source:
            raise DataError(
                "the source is an iterator, which cannot go on after its loop was left: what it has given is "
                "gone. Give something that can be iterated again, such as an object with __iter__."
            )
        self._begun = True

    def _refuse_nothing(self, epoch: int) -> None:
        if iter(self.source) is self.source and epoch > 0:
            raise DataError(
                f"the source is an iterator and has nothing left for epoch {epoch}. "
                "Give something that can be iterated again, such as a list or an object with __iter__."
            )
        raise DataError(
            "the source gives no batch. Give at least one sample, and one full batch if drop_last."
        )


def _keys(key: int, start: int) -> Iterator[int]:
    """Give the keys of the positions from `start` on, without end."""
    while True:
        yield from sample_keys(key, torch.arange(start, start + _BLOCK)).tolist()
        start += _BLOCK
