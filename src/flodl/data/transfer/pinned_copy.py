"""From the host to a CUDA device: pinned buffers, a stream of its own, batches ready ahead of time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from flodl.core import log

from ..batch import Handed, map_tensors, num_bytes_of, tensors_in
from .side_stream import SideStream, keep_for

_BUFFERS = 2


@dataclass
class _Buffer:
    """Pinned memory for one batch, and the event after which it may be written again."""

    copied: torch.cuda.Event = field(default_factory=lambda: torch.cuda.Event())  # type: ignore[no-untyped-call]
    memory: list[Tensor] = field(default_factory=list)

    def hold(self, place: int, tensor: Tensor, *, is_fresh: bool) -> Tensor:
        """Copy a tensor into the pinned memory; it grows when a batch is larger than any before.

        What is pinned or on a device already, and `is_fresh`, so that nobody writes to it any more, stays
        where it is.
        """
        if tensor.device.type != "cpu":
            return tensor if is_fresh else tensor.clone()
        if tensor.numel() == 0 or (is_fresh and tensor.is_pinned()):
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
    """

    def __init__(self, device: torch.device, *, depth: int, room: Callable[[], int | None]) -> None:
        self.device, self.depth, self._room = device, depth, room
        self._side = SideStream(device)
        self._buffers = [_Buffer() for _ in range(_BUFFERS)]
        self._turn = 0
        self.ahead = depth

    def run(self, source: Iterator[Handed], *, fresh: bool = True) -> Iterator[Handed]:
        """Give the same batches, on the device.

        Where they are not `fresh`, the source may write the next one into the same memory.
        """
        ready: deque[tuple[Handed, torch.cuda.Event]] = deque()
        errors: list[Exception] = []
        room, largest, limit = self._room(), -1, self.depth
        while True:
            try:
                handed = next(source, None)
                if handed is None:
                    break
                size = num_bytes_of(handed.batch)
                if size > largest:
                    largest, limit = size, self._limit(room, size)
                ready.append(self._send(handed, is_fresh=fresh))
            except Exception as problem:  # of a later batch; it is told when that one is due
                errors.append(problem)
                break
            while len(ready) > limit:
                yield self._receive(*ready.popleft())
        while ready:
            yield self._receive(*ready.popleft())
        if errors:
            raise errors.pop()  # kept nowhere: what it saw may hold much memory

    def _limit(self, room: int | None, batch_bytes: int) -> int:
        fitting = self.depth if room is None or not batch_bytes else room // batch_bytes
        ahead = max(1, min(self.depth, fitting))
        if ahead < self.ahead:
            log.verbose("Loader: %d of %d batches made ahead, for the memory cap", ahead, self.depth)
        self.ahead = ahead
        return ahead

    def _send(self, handed: Handed, *, is_fresh: bool) -> tuple[Handed, torch.cuda.Event]:
        buffer = self._buffers[self._turn % _BUFFERS]
        self._turn += 1
        buffer.copied.synchronize()
        places = iter(range(len(tensors_in(handed.batch))))
        pinned = map_tensors(
            lambda tensor: buffer.hold(next(places), tensor, is_fresh=is_fresh), handed.batch
        )
        with self._side.after_all_users():
            batch = map_tensors(lambda tensor: tensor.to(self.device, non_blocking=True), pinned)
            buffer.copied.record(self._side.stream)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record(self._side.stream)
        return Handed(batch, handed.position, handed.source_state), arrived

    def _receive(self, handed: Handed, arrived: torch.cuda.Event) -> Handed:
        current = self._side.current()
        self._side.used.add(current)
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
