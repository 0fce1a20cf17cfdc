"""Batches made on a CUDA device beside the step that uses the one before."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

from .batching import Handed
from .form import num_bytes_of, tensors_in

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
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._most = most
        # All streams in which batches were ever used: some of them may still be.
        self._used: set[torch.cuda.Stream] = set()

    def run(self, source: Iterator[Handed]) -> Iterator[Handed]:
        """Give the same batches; `source` is only asked while its stream is the current one."""
        is_ending = sys.is_finalizing
        current = self._current()
        try:
            group = self._made(source, 1)
            while group.batches:
                following = self._after(group, source)
                waiting: set[torch.cuda.Stream] = set()
                while group.batches:
                    current = self._current()
                    if current not in waiting:
                        current.wait_event(group.done)
                        waiting.add(current)
                        self._used.add(current)
                    handed = group.batches.popleft()
                    keep_for(current, handed.batch)
                    yield handed
                    del handed  # its memory may be needed for the next one
                group = following
            group.raise_error()
        finally:
            # Where the loop is left early, a batch may still be in the making: whatever is freed from here on
            # must not be written to before it is done. A stream that is being recorded cannot wait for it.
            if not is_ending() and not torch._C._cuda_isCurrentStreamCapturing():
                current.wait_stream(self.stream)

    def _after(self, group: _Group, source: Iterator[Handed]) -> _Group:
        """Make the group that follows: twice as many batches, as far as memory goes."""
        if group.error is not None:
            return _Group(error=group.error)
        size = num_bytes_of(group.batches[0].batch)
        count = max(1, min(2 * len(group.batches), self._most, _GROUP_BYTES // max(size, 1)))
        return self._made(source, count)

    def _current(self) -> torch.cuda.Stream:
        # By its number: to find that of a device takes torch several times as long as the answer.
        return torch.cuda.current_stream(self.device.index)

    def _made(self, source: Iterator[Handed], count: int) -> _Group:
        group = _Group()
        self._used.add(self._current())
        for stream in self._used:
            self.stream.wait_stream(stream)
        with self.stream:
            try:
                group.batches.extend(islice(source, count))
            except Exception as error:  # of a later batch; it is told when that one is due
                group.error = error
            group.done.record(self.stream)
        return group


@dataclass
class _Group:
    """Batches made one after another, the event after the last, and why there are no more."""

    batches: deque[Handed] = field(default_factory=deque)
    done: torch.cuda.Event = field(default_factory=lambda: torch.cuda.Event())  # type: ignore[no-untyped-call]
    error: Exception | None = None

    def raise_error(self) -> None:
        """Raise what went wrong, if anything did, and let go of it: what it saw may hold much memory."""
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error


def keep_for(stream: torch.cuda.Stream, batch: Any) -> None:
    """Keep the memory of a batch from being given away while a stream uses it.

    Where one thread reads and trains, that follows from the order in which it asks. A thread that reads for
    another one does not know what is asked for meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        for tensor in tensors_in(batch):
            if tensor.is_cuda:
                tensor.record_stream(stream)
