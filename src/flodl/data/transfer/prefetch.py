"""Prepare batches on a CUDA device while the training step uses earlier ones."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import torch

from ..batch import PositionedBatch, num_bytes_of
from .side_stream import SideStream, record_use

_GROUP_BYTES = 32 * 2**20  # of batches prepared at once; up to twice that is in memory


class Prefetcher:
    """Prepares batches on a side stream while earlier ones are used.

    On the training stream, preparing a batch would delay the next step; on a side stream it overlaps with
    the current one. When one stream waits for another, however, a step starts about twenty microseconds
    late, so up to `max_group` small batches are prepared at a time. They start once the steps queued so far
    are done: memory that those have freed is reused immediately, however far ahead the host is.
    """

    def __init__(self, device: torch.device, *, max_group: int = 1) -> None:
        self.side = SideStream(device)
        self._max_group = max_group

    def run(self, source: Iterator[PositionedBatch]) -> Iterator[PositionedBatch]:
        """Yield the batches of `source`, which is only advanced while the side stream is current."""
        is_ending = sys.is_finalizing
        current = self.side.current()
        try:
            group = self._prepare(source, 1)
            while group.batches:
                following = self._prepare_next(group, source)
                waiting: set[torch.cuda.Stream] = set()
                while group.batches:
                    current = self.side.current()
                    if current not in waiting:
                        current.wait_event(group.done)
                        waiting.add(current)
                        self.side.used.add(current)
                    item = group.batches.popleft()
                    record_use(current, item.batch)
                    yield item
                    del item  # its memory may be needed for the next one
                group = following
            if group.errors:
                raise group.errors.pop()  # drop the reference: its traceback may hold much memory
        finally:
            # If the loop is left early, a batch may still be in progress: memory freed from now on must not
            # be written before it is done. A stream that is being captured cannot wait for it.
            if not is_ending() and not torch._C._cuda_isCurrentStreamCapturing():
                current.wait_stream(self.side.stream)

    def _prepare_next(self, group: Group, source: Iterator[PositionedBatch]) -> Group:
        """Prepare the next group: twice as many batches, within the limits."""
        if group.errors:
            return Group(errors=group.errors)
        size = num_bytes_of(group.batches[0].batch)
        count = max(1, min(2 * len(group.batches), self._max_group, _GROUP_BYTES // max(size, 1)))
        return self._prepare(source, count)

    def _prepare(self, source: Iterator[PositionedBatch], count: int) -> Group:
        group = Group()
        with self.side.wait_for_users():
            try:
                group.batches.extend(islice(source, count))
            except Exception as error:  # of a later batch; raised when that one is due
                group.errors.append(error)
            group.done.record(self.side.stream)
        return group


@dataclass
class Group:
    """Batches, the event after the last of them, and the error that prevented more."""

    batches: deque[PositionedBatch] = field(default_factory=deque)
    done: torch.cuda.Event = field(default_factory=lambda: torch.cuda.Event())  # type: ignore[no-untyped-call]
    errors: list[Exception] = field(default_factory=list)
