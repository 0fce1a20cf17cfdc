"""Iterable data, which may have no known length."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from itertools import islice
from typing import Any, NoReturn

import torch
from torch.utils.data import DataLoader

from flodl.core import log
from flodl.core.errors import CursorError, DataError
from flodl.core.formats import a_type
from flodl.core.rng_state import preserve_rng_state

from ..batch import apply_names
from ..sampling.epoch import Epoch
from ..sampling.global_rng import seed_global_rng
from ..sampling.order import sample_keys, stream_key
from ..worker_death import death_of_worker, explain_deaths
from ..worker_errors import clarify_torch_error
from .collate import collate_lists_as_rows
from .repeated_by_workers import repeated_batches, warning_about_repeats
from .samples import Collate, Transform, apply_collate, apply_transform
from .source_epochs import SourceEpochs

_BLOCK = 1024  # keys drawn at once
Part = tuple[int, int]  # the number of the part, and the number of parts
WHOLE: Part = (0, 1)
_ENDED = "ended"  # the state after a partial batch: by then the source may have reset itself


class Stream:
    """An iterable, read in its own order or through a shuffle buffer.

    A position is the number of items read. If the source has `state_dict` and `load_state_dict` and there is
    no buffer, resuming restores its state; otherwise the earlier items are read again and skipped.
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
        self._epochs = SourceEpochs(source)
        self.transform = transform
        self.collate = collate
        self.names = names
        self.buffer = buffer
        self.num_samples = _length(source)
        self._is_stateful = not buffer and all(
            hasattr(source, method) for method in ("state_dict", "load_state_dict")
        )
        self._initial_state = self._state()
        self._was_started = False
        self._warned = self._has_compared = False
        # The iterator that was read last, unless it was freed.
        self._last_iterator: Callable[[], Any] = _nothing

    def batches(self, epoch: Epoch, *, part: Part = WHOLE) -> Iterator[tuple[Any, int, Any]]:
        """Yield (batch, position after it, state of the source there), from the start position of `epoch`.

        With a batch size of None, the items are already batches. If there are several parts, each has its
        own positions and random numbers.
        """
        size = epoch.batch_size
        items = self._items(epoch, part)
        position = epoch.start
        while True:
            with preserve_rng_state():
                samples = list(islice(items, size or 1))
            num_read = position + len(samples)
            if part == WHOLE:
                self._check_length(num_read, ended=len(samples) < (size or 1))
            if not samples or (epoch.drop_last and size is not None and len(samples) < size):
                return
            position = num_read
            batch = samples[0] if size is None else self._collated(samples)
            ended = size is not None and len(samples) < size
            yield apply_names(batch, self.names), position, _ENDED if ended else self._state()

    def _collated(self, samples: list[Any]) -> Any:
        if self.collate is None:
            return collate_lists_as_rows(samples)
        return apply_collate(self.collate, samples)

    def raise_no_batch(self, epoch: int) -> NoReturn:
        """Raise the error for an epoch without batches."""
        if self.is_iterator and epoch > 0:
            raise DataError(
                f"the source is an iterator and has nothing left for epoch {epoch + 1}. "
                "Pass something that can be iterated again, such as a list or an object with __iter__."
            )
        if epoch > 0:
            raise DataError(
                f"the source yields no batch in epoch {epoch + 1}. Its __iter__ must return a new iterator "
                "each time, over at least one sample (with drop_last=True, one full batch)."
            )
        raise DataError(
            "the source yields no batch. It needs at least one sample, or one full batch with drop_last=True."
        )

    @property
    def order_name(self) -> str:
        """A description of what its order depends on; part of the cursor."""
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
        """Whether the source can be read only once."""
        return isinstance(self.source, Iterator) and iter(self.source) is self.source

    def _items(self, epoch: Epoch, part: Part) -> Iterator[Any]:
        """Yield the transformed items from the start position, with the generators seeded for each."""
        self._epochs.set(epoch.number)
        if epoch.source_state == _ENDED:
            return
        restores = epoch.source_state is not None and self._is_stateful
        num_skipped = 0 if restores else epoch.start
        if self._is_stateful:
            self.source.load_state_dict(deepcopy(epoch.source_state if restores else self._initial_state))
        self._check_restartable(epoch.start)
        ordered = self._shuffled_items(epoch, part, epoch.start - num_skipped)
        if sum(1 for _ in islice(ordered, num_skipped)) < num_skipped:
            raise CursorError(
                f"the source ended before item {epoch.start}, the position of the cursor. "
                "Use the source that the cursor was saved with, or call set_epoch to restart."
            )
        for item, key in zip(ordered, _keys(_epoch_key(epoch, "augment", part), epoch.start)):
            if self.transform is None:
                yield item
            else:
                seed_global_rng(key)
                yield apply_transform(self.transform, item)

    def _shuffled_items(self, epoch: Epoch, part: Part, first: int) -> Iterator[Any]:
        raw = self._raw_items(_epoch_key(epoch, "source", part), first)
        if not self.buffer:
            yield from raw
            return
        buffer: list[Any] = []
        choices = _keys(_epoch_key(epoch, "order", part), 0)
        for item in raw:
            if len(buffer) < self.buffer:
                buffer.append(item)
                continue
            at = next(choices) % len(buffer)
            buffer[at], item = item, buffer[at]
            yield item
        while buffer:
            at = next(choices) % len(buffer)
            buffer[at], buffer[-1] = buffer[-1], buffer[at]
            yield buffer.pop()

    def _raw_items(self, key: int, first: int) -> Iterator[Any]:
        # A source that draws its order at the start, like a torch DataLoader, draws that of the whole epoch.
        seed_global_rng(next(_keys(key, 0)))
        if isinstance(self.source, DataLoader) and self.source.persistent_workers:
            self.source._iterator = None  # persistent workers would continue with their own random states
        iterator = self._iterator()
        repeated = None if self._has_compared else repeated_batches(self.source)
        for item_key in _keys(key, first):
            seed_global_rng(item_key)
            try:
                item = next(iterator)
            except StopIteration:
                return
            except Exception as error:
                is_of_torch = isinstance(self.source, DataLoader) and not clarify_torch_error(error)
                if is_of_torch and (died := death_of_worker(error, getattr(iterator, "_workers", ()))):
                    raise died from None
                raise
            if repeated is not None and repeated.add(item):
                self._has_compared = True
                log.warn("%s", warning_about_repeats(self.source.dataset, self.source.num_workers))
            yield item

    def _iterator(self) -> Iterator[Any]:
        iterator: Iterator[Any] = iter(self.source)
        if iterator is self._last_iterator() and not self._is_stateful and not self.is_iterator:
            raise DataError(
                f"the __iter__ of the source, {a_type(self.source)}, returned the same iterator "
                "again, which does not start over. Return a new iterator each time."
            )
        self._last_iterator = _reference(iterator)
        if isinstance(self.source, DataLoader):
            explain_deaths()
        return iterator

    def _state(self) -> Any:
        # A copy: the source may keep writing to the state that it returned.
        return deepcopy(self.source.state_dict()) if self._is_stateful else None

    def _check_length(self, num_read: int, *, ended: bool) -> None:
        """Warn once if the source has more or fewer items than its length says."""
        length = self.num_samples
        is_fine = num_read in (0, length) or (length is not None and num_read < length and not ended)
        if length is None or self._warned or is_fine:
            return
        self._warned = True
        found = f"yielded only {num_read}" if num_read < length else "yields more"
        log.warn(
            "Loader: the length of the source is %d, but it %s. Correct its __len__: the number of batches, "
            "progress and schedules depend on it.",
            length,
            found,
        )

    def _check_restartable(self, start: int) -> None:
        if start and self._was_started and not self._is_stateful and self.is_iterator:
            raise DataError(
                "the source is an iterator, which cannot continue after its loop was left: the items it "
                "yielded are gone. Pass something that can be iterated again, such as an object with "
                "__iter__."
            )
        self._was_started = True


def _nothing() -> None:
    return None


def _reference(item: Any) -> Callable[[], Any]:
    """Return a weak reference to an item, or a strong one where there are no weak ones."""
    try:
        return weakref.ref(item)
    except TypeError:
        return lambda: item


def _length(source: Any) -> int | None:
    """Return the length of a source, or None; a torch DataLoader over an iterable raises TypeError."""
    try:
        return len(source)
    except (TypeError, ValueError, NotImplementedError):
        return None


def _epoch_key(epoch: Epoch, purpose: str, part: Part) -> int:
    """Return the key for one use of randomness; with a single part, the same as without workers."""
    number, count = part
    return stream_key(epoch.seed, epoch.number, purpose if count == 1 else f"{purpose}/{number}/{count}")


def _keys(key: int, start: int) -> Iterator[int]:
    """Yield the keys of the positions from `start` on, endlessly."""
    while True:
        yield from sample_keys(key, torch.arange(start, start + _BLOCK)).tolist()
        start += _BLOCK
