"""A CUDA stream on which batches are made or sent beside the training that uses them."""

from __future__ import annotations

import threading
from typing import Any

import torch

from ..batch import tensors_in


class SideStream:
    """The stream, and all those in which its batches were ever `used`: some of them may still be."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.used: set[torch.cuda.Stream] = set()

    def current(self) -> torch.cuda.Stream:
        """Give the stream in which the training goes on."""
        # By its number: to find that of a device takes torch several times as long as the answer.
        return torch.cuda.current_stream(self.device.index)

    def after_all_users(self) -> torch.cuda.Stream:
        """Give the stream, to be entered, once it waits for all steps that the host has asked for so far.

        So memory that those have let go of may be used again at once, however far the host is ahead.
        """
        self.used.add(self.current())
        for stream in self.used:
            self.stream.wait_stream(stream)
        return self.stream


def keep_for(stream: torch.cuda.Stream, batch: Any) -> None:
    """Keep the memory of a batch from being given away while a stream uses it.

    Where one thread reads and trains, that follows from the order in which it asks. A thread that reads for
    another one does not know what is asked for meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        for tensor in tensors_in(batch):
            if tensor.is_cuda:
                tensor.record_stream(stream)
