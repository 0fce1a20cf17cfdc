"""Batches made on a CUDA device beside the step that uses the one before."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import torch

from ..batch import Handed, num_bytes_of
from .side_stream import SideStream, keep_for

_GROUP_BYTES = 32 * 2**20  # of batches made at once; twice that may be waiting


class Ahead:
    """Makes batches on a stream of its own while those before are used.

    In the stream of the training the work of making a batch would stand between two steps; beside it, it
    finds room in a step that is under way. Where one stream waits for another, though, a step begins some
    twenty microseconds late, so small batches are made several at a time (`most`). They are begun once the
    steps that the host has asked for so far are done: memory that those have let go of is used again at
    once, however far the host is ahead of the device.
    """

    def __init__(self, device: torch.device, *, most: int = 1) -> None:
        self.side = SideStream(device)
        self._most = most

    def run(self, source: Iterator[Handed]) -> Iterator[Handed]:
        """Give the same batches; `source` is only asked while its stream is the current one."""
        is_ending = sys.is_finalizing
        current = self.side.current()
        try:
            group = self._made(source, 1)
            while group.batches:
                following = self._after(group, source)
                waiting: set[torch.cuda.Stream] = set()
                while group.batches:
                    current = self.side.current()
                    if current not in waiting:
                        current.wait_event(group.done)
                        waiting.add(current)
                        self.side.used.add(current)
                    handed = group.batches.popleft()
                    keep_for(current, handed.batch)
                    yield handed
                    del handed  # its memory may be needed for the next one
                group = following
            if group.errors:
                raise group.errors.pop()  # kept nowhere: what it saw may hold much memory
        finally:
            # Where the loop is left early, a batch may still be in the making: whatever is freed from here on
            # must not be written to before it is done. A stream that is being recorded cannot wait for it.
            if not is_ending() and not torch._C._cuda_isCurrentStreamCapturing():
                current.wait_stream(self.side.stream)

    def _after(self, group: _Group, source: Iterator[Handed]) -> _Group:
        """Make the group that follows: twice as many batches, as far as memory goes."""
        if group.errors:
            return _Group(errors=group.errors)
        size = num_bytes_of(group.batches[0].batch)
        count = max(1, min(2 * len(group.batches), self._most, _GROUP_BYTES // max(size, 1)))
        return self._made(source, count)

    def _made(self, source: Iterator[Handed], count: int) -> _Group:
        group = _Group()
        with self.side.after_all_users():
            try:
                group.batches.extend(islice(source, count))
            except Exception as error:  # of a later batch; it is told when that one is due
                group.errors.append(error)
            group.done.record(self.side.stream)
        return group


@dataclass
class _Group:
    """Batches made one after another, the event after the last, and why there are no more."""

    batches: deque[Handed] = field(default_factory=deque)
    done: torch.cuda.Event = field(default_factory=lambda: torch.cuda.Event())  # type: ignore[no-untyped-call]
    errors: list[Exception] = field(default_factory=list)
