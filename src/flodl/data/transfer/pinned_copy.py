"""Copy batches to a device ahead of time; to CUDA through pinned memory, on a side stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from flodl.core import log

from ..batch import PositionedBatch, map_tensors, num_bytes_of, tensors_in
from .side_stream import SideStream, record_use

_BUFFERS = 2


@dataclass
class _Buffer:
    """Pinned memory for one batch, and the event after which it may be overwritten."""

    copied: torch.cuda.Event = field(default_factory=lambda: torch.cuda.Event())  # type: ignore[no-untyped-call]
    memory: list[Tensor] = field(default_factory=list)

    def stage(self, index: int, tensor: Tensor, *, is_fresh: bool) -> Tensor:
        """Copy a tensor into pinned memory, which grows with the largest batch.

        A tensor that is already pinned or on a device is not copied if it `is_fresh`: nothing writes to it
        anymore.
        """
        if tensor.device.type != "cpu":
            return tensor if is_fresh else tensor.clone()
        if tensor.numel() == 0 or (is_fresh and tensor.is_pinned()):
            return tensor
        while len(self.memory) <= index:
            self.memory.append(torch.empty(0, dtype=torch.uint8))
        if self.memory[index].numel() < tensor.nbytes:
            self.memory[index] = torch.empty(tensor.nbytes, dtype=torch.uint8, pin_memory=True)
        pinned = self.memory[index][: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        return pinned.copy_(tensor)


class PinnedCopier:
    """Copies batches to a CUDA device while earlier ones are used.

    Two pinned buffers alternate: the host fills one while the other is copied. Up to `depth` batches are
    ready on the device, fewer if they exceed `usable_bytes`, but at least one. A copy starts once the steps
    queued so far are done: memory that they have freed is reused at once, and the host is never many batches
    ahead of the device.
    """

    def __init__(self, device: torch.device, *, depth: int, usable_bytes: Callable[[], int | None]) -> None:
        self.device, self.depth, self._usable_bytes = device, depth, usable_bytes
        self.side = SideStream(device)
        self._buffers = [_Buffer() for _ in range(_BUFFERS)]
        self._num_sent = 0
        self.num_ahead = depth

    def run(self, source: Iterator[PositionedBatch], *, fresh: bool = True) -> Iterator[PositionedBatch]:
        """Yield the batches of `source`, copied to the device.

        If they are not `fresh`, the source may write the next batch into the same memory.
        """
        ready: deque[tuple[PositionedBatch, torch.cuda.Event]] = deque()
        errors: list[Exception] = []
        usable, largest, limit = self._usable_bytes(), -1, self.depth
        while True:
            try:
                item = next(source, None)
                if item is None:
                    break
                size = num_bytes_of(item.batch)
                if size > largest:
                    largest, limit = size, self._limit(usable, size)
                ready.append(self._send(item, is_fresh=fresh))
            except Exception as error:  # of a later batch; raised when that one is due
                errors.append(error)
                break
            while len(ready) > limit:
                yield self.receive(*ready.popleft())
        while ready:
            yield self.receive(*ready.popleft())
        if errors:
            raise errors.pop()  # drop the reference: its traceback may hold much memory

    def _limit(self, usable_bytes: int | None, batch_bytes: int) -> int:
        fitting = self.depth if usable_bytes is None or not batch_bytes else usable_bytes // batch_bytes
        num_ahead = max(1, min(self.depth, fitting))
        if num_ahead < self.num_ahead:
            log.verbose("Loader: memory_cap limits prefetching to %d of %d batches", num_ahead, self.depth)
        self.num_ahead = num_ahead
        return num_ahead

    def _send(self, item: PositionedBatch, *, is_fresh: bool) -> tuple[PositionedBatch, torch.cuda.Event]:
        buffer = self._buffers[self._num_sent % _BUFFERS]
        self._num_sent += 1
        buffer.copied.synchronize()
        indices = iter(range(len(tensors_in(item.batch))))
        pinned = map_tensors(
            lambda tensor: buffer.stage(next(indices), tensor, is_fresh=is_fresh), item.batch
        )
        with self.side.wait_for_users():
            batch = map_tensors(lambda tensor: tensor.to(self.device, non_blocking=True), pinned)
            buffer.copied.record(self.side.stream)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record(self.side.stream)
        return PositionedBatch(batch, item.position, item.source_state), arrived

    def receive(self, item: PositionedBatch, arrived: torch.cuda.Event) -> PositionedBatch:
        """Return a batch once the current stream waits for its copy."""
        current = self.side.current()
        self.side.used.add(current)
        current.wait_event(arrived)
        record_use(current, item.batch)
        return item


def copy_to_device(
    source: Iterator[PositionedBatch], device: torch.device, *, copies: bool = False
) -> Iterator[PositionedBatch]:
    """Yield the batches of `source` on a device without streams; with `copies`, never the same memory."""
    for item in source:
        batch: Any = map_tensors(
            lambda tensor: tensor.clone() if copies and tensor.device == device else tensor.to(device),
            item.batch,
        )
        yield PositionedBatch(batch, item.position, item.source_state)
