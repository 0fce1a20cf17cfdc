"""Looking for losses that are no longer numbers, without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor

LOOK_EVERY = 16


class FiniteWatch:
    """Tell when an update was skipped since the last look.

    On a GPU the count is copied to the host beside the training and read at the next look, so the news is
    up to two looks old; the updates themselves were skipped at once, on the device.
    """

    def __init__(self, num_skipped: Tensor) -> None:
        self._count = num_skipped
        self._known = 0
        self._calls = 0
        self._on_host: Tensor | None = None
        self._copied: torch.cuda.Event | None = None
        if num_skipped.is_cuda:
            self._on_host = torch.zeros((), dtype=num_skipped.dtype).pin_memory()

    def skipped_since(self) -> int:
        """Give how many updates were skipped since the last call, as far as is known."""
        if self._on_host is None:
            return self._take(int(self._count))
        self._calls += 1
        if self._calls % LOOK_EVERY:
            return 0
        news = 0
        if self._copied is not None and self._copied.query():  # type: ignore[no-untyped-call]
            news = self._take(int(self._on_host))
        self._on_host.copy_(self._count, non_blocking=True)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied.record()
        return news

    def settle(self) -> int:
        """Give what is not known yet; this waits for the device."""
        self._copied = None
        return self._take(int(self._count))

    def forget(self) -> None:
        """Take the present count for known, as after a resume."""
        # A copy that is on its way still has the count of before.
        self._copied = None
        self._known = int(self._count)

    def _take(self, count: int) -> int:
        news, self._known = count - self._known, count
        return news
