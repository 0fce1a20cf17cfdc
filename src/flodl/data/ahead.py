"""Batches made on a CUDA device beside the step that uses the one before."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import torch

from .batching import Handed
from .form import tensors_in


class Ahead:
    """Makes each batch on a stream of its own while the one before is used.

    Gathering and augmenting are many small kernels. In the stream of the training they would stand between
    two steps; beside it they find room in a step that is under way. A batch is begun once the steps that the
    host has asked for so far are done, so memory that they have let go of is used again at once, however far
    the host is ahead of the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def run(self, source: Iterator[Handed]) -> Iterator[Handed]:
        """Give the same batches; `source` is only asked while its stream is the current one."""
        current = torch.cuda.current_stream(self.device)
        try:
            ready = self._made(source)
            while ready is not None:
                following = self._made(source)
                handed, done = ready
                current = torch.cuda.current_stream(self.device)
                current.wait_event(done)
                keep_for(current, handed.batch)
                yield handed
                ready = following
        finally:
            # Where the loop is left early, a batch may still be in the making: whatever is freed from here on
            # must not be written to before it is done. A stream that is being recorded cannot wait for it.
            if not torch._C._cuda_isCurrentStreamCapturing():
                current.wait_stream(self.stream)

    def _made(self, source: Iterator[Handed]) -> tuple[Handed, torch.cuda.Event] | None:
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            handed = next(source, None)
            if handed is None:
                return None
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self.stream)
        return handed, done


def keep_for(stream: torch.cuda.Stream, batch: Any) -> None:
    """Keep the memory of a batch from being given away while a stream uses it.

    Where one thread reads and trains, that follows from the order in which it asks. A thread that reads for
    another one does not know what is asked for meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        for tensor in tensors_in(batch):
            if tensor.is_cuda:
                tensor.record_stream(stream)
