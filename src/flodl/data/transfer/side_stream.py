"""A CUDA stream on which batches are prepared or copied while training uses earlier ones."""

from __future__ import annotations

import threading
from typing import Any

import torch

from ..batch import tensors_in


class SideStream:
    """A stream, and all streams that have `used` its batches and may still be using them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.used: set[torch.cuda.Stream] = set()

    def current(self) -> torch.cuda.Stream:
        """Return the stream that training currently uses."""
        # By index: with a device, torch takes several times as long.
        return torch.cuda.current_stream(self.device.index)

    def wait_for_users(self) -> torch.cuda.Stream:
        """Make the stream wait for all work queued so far by its users, and return it.

        So memory that this work has freed can be reused immediately, however far ahead the host is.
        """
        self.used.add(self.current())
        for stream in self.used:
            self.stream.wait_stream(stream)
        return self.stream


def record_use(stream: torch.cuda.Stream, batch: Any) -> None:
    """Keep the memory of a batch from being reused while a stream uses it.

    If one thread both reads and trains, the order of its calls guarantees that. A thread that reads for
    another one does not know what the other one queues meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        for tensor in tensors_in(batch):
            if tensor.is_cuda:
                tensor.record_stream(stream)
