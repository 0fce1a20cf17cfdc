"""From the host to a CUDA device: pinned buffers, a stream of its own, batches ready ahead of time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from flodl.core import log

from .ahead import keep_for
from .batching import Handed
from .form import map_tensors, num_bytes_of, tensors_in

_BUFFERS = 2


@dataclass
class _Buffer:
    """Pinned memory for one batch, and the event after which it may be written again."""

    copied: torch.cuda.Event = field(default_factory=lambda: torch.cuda.Event())  # type: ignore[no-untyped-call]
    memory: list[Tensor] = field(default_factory=list)

    def hold(self, place: int, tensor: Tensor, *, is_fresh: bool) -> Tensor:
        """Copy a tensor into the pinned memory; it grows when a batch is larger than any before.

        What is pinned already, and `is_fresh`, so that nobody writes to it any more, stays where it is.
        """
        if tensor.device.type != "cpu" or tensor.numel() == 0 or (is_fresh and tensor.is_pinned()):
            return tensor
        while len(self.memory) <= place:
            self.memory.append(torch.empty(0, dtype=torch.uint8))
        if self.memory[place].numel() < tensor.nbytes:
            self.memory[place] = torch.empty(tensor.nbytes, dtype=torch.uint8, pin_memory=True)
        pinned = self.memory[place][: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        return pinned.copy_(tensor)


class Feed:
    """Copies batches to the device while the one before is used.

    Two pinned buffers take turns: the host fills one while the other is on its way. As many batches lie
    ready on the device as `depth` says, fewer where `room` (bytes that may be used now) has no place for
    them, and at least one. A copy begins once the steps that the host has asked for so far are done: memory
    that they have let go of is used again at once, and the host is never many batches ahead of the device.
    Where batches are not `fresh`, their source may write the next one into the same memory.
    """

    def __init__(
        self, device: torch.device, *, depth: int, room: Callable[[], int | None], fresh: bool = True
    ) -> None:
        self.device, self.depth, self._room, self._fresh = device, depth, room, fresh
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._buffers = [_Buffer() for _ in range(_BUFFERS)]
        self._turn = 0
        # All streams in which batches were ever used: some of them may still be.
        self._used: set[torch.cuda.Stream] = set()
        self.ahead = depth

    def run(self, source: Iterator[Handed]) -> Iterator[Handed]:
        """Give the same batches, on the device."""
        ready: deque[tuple[Handed, torch.cuda.Event]] = deque()
        limit: int | None = None
        error: Exception | None = None
        while True:
            try:
                handed = next(source, None)
                if handed is None:
                    break
                if limit is None:
                    limit = self._limit(num_bytes_of(handed.batch))
                ready.append(self._send(handed))
            except Exception as problem:  # of a later batch; it is told when that one is due
                error = problem
                break
            if len(ready) > limit:
                yield self._receive(*ready.popleft())
        while ready:
            yield self._receive(*ready.popleft())
        try:
            if error is not None:
                raise error
        finally:
            del error  # what it saw may hold much memory

    def _limit(self, batch_bytes: int) -> int:
        room = self._room()
        fitting = self.depth if room is None or not batch_bytes else room // batch_bytes
        ahead = max(1, min(self.depth, fitting))
        if ahead < self.ahead:
            log.verbose("Loader: %d of %d batches made ahead, for the memory cap", ahead, self.depth)
        self.ahead = ahead
        return ahead

    def _send(self, handed: Handed) -> tuple[Handed, torch.cuda.Event]:
        buffer = self._buffers[self._turn % _BUFFERS]
        self._turn += 1
        buffer.copied.synchronize()
        places = iter(range(len(tensors_in(handed.batch))))
        pinned = map_tensors(
            lambda tensor: buffer.hold(next(places), tensor, is_fresh=self._fresh), handed.batch
        )
        self._used.add(torch.cuda.current_stream(self.device.index))
        for stream in self._used:
            self._stream.wait_stream(stream)
        with self._stream:
            batch = map_tensors(lambda tensor: tensor.to(self.device, non_blocking=True), pinned)
            buffer.copied.record(self._stream)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record(self._stream)
        return Handed(batch, handed.position, handed.source_state), arrived

    def _receive(self, handed: Handed, arrived: torch.cuda.Event) -> Handed:
        current = torch.cuda.current_stream(self.device.index)
        self._used.add(current)
        current.wait_event(arrived)
        keep_for(current, handed.batch)
        return handed


def moved(source: Iterator[Handed], device: torch.device, *, copies: bool = False) -> Iterator[Handed]:
    """Give the same batches on a device without streams, or as they are where they lie there already."""
    for handed in source:
        batch: Any = map_tensors(
            lambda tensor: tensor.clone() if copies and tensor.device == device else tensor.to(device),
            handed.batch,
        )
        yield Handed(batch, handed.position, handed.source_state)
