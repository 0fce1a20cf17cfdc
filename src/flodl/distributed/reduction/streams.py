"""CUDA streams: a reduction in the background does not wait for training, nor training for it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


class Foreground:
    """A reduction while the rank waits: the current stream."""

    def mark(self) -> None:
        """Call it after work that the next reduction depends on."""

    def stream(self) -> AbstractContextManager[object]:
        """Return the context in which the reduction runs."""
        return nullcontext()


class Background:
    """A reduction in another thread, while the rank trains: a stream of its own on CUDA."""

    def __init__(self, device: torch.device) -> None:
        cuda: Any = torch.cuda
        self._stream = cuda.Stream(device) if device.type == "cuda" else None
        self._marked = cuda.Event() if device.type == "cuda" else None

    def mark(self) -> None:
        if self._stream is not None and self._marked is not None:
            self._marked.record(torch.cuda.current_stream(self._stream.device))

    def stream(self) -> AbstractContextManager[object]:
        if self._stream is None:
            return nullcontext()
        self._stream.wait_event(self._marked)
        found: AbstractContextManager[object] = torch.cuda.stream(self._stream)
        return found
