"""Looking for losses that are no longer numbers, without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor

LOOK_EVERY = 16
# The loss scale of fp16 begins at 2¹⁶, is halved at every update that overflows, and doubles rarely: after
# so many in a row it is less than one, and not to blame.
OVERFLOWS_IN_A_ROW = 24


class FiniteWatch:
    """Tell when an update was skipped since the last look, or when so many in a row were.

    On a GPU the count is copied to the host beside the training at every sixteenth update of the run, and
    read at the next one: the news is at most two looks old. The updates themselves were skipped at once, on
    the device.
    """

    def __init__(self, num_skipped: Tensor, *, in_a_row: int = 1) -> None:
        self._count, self._in_a_row = num_skipped, in_a_row
        # What is known: so many skipped, of so many updates.
        self._skipped = self._of = 0
        # How many of the last updates that are known were skipped, without one between them that was not.
        self.row = 0
        self._on_host: Tensor | None = None
        # The copy that is on its way, and the update that it was taken after.
        self._copied: tuple[torch.cuda.Event, int] | None = None
        if num_skipped.is_cuda:
            self._on_host = torch.zeros((), dtype=num_skipped.dtype).pin_memory()

    def skipped_since(self, updates: int) -> int:
        """Give how many were skipped since the last call, as far as is known; ask after each update."""
        if self._on_host is None:
            return self._take(int(self._count), updates)
        if updates % LOOK_EVERY:
            return 0
        news = 0
        if self._copied is not None:
            copied, at = self._copied
            # Not asked whether it is done: the run would be stopped where the device happens to be.
            copied.synchronize()
            news = self._take(int(self._on_host), at)
        self._on_host.copy_(self._count, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._copied = event, updates
        return news

    def settle(self, updates: int) -> int:
        """Give what is not known yet; this waits for the device."""
        self._copied = None
        return self._take(int(self._count), updates)

    def forget(self, updates: int, *, row: int = 0) -> None:
        """Take the present count for known, as after a resume."""
        # A copy that is on its way still has the count of before.
        self._copied = None
        self._skipped, self._of, self.row = int(self._count), updates, row

    def _take(self, skipped: int, of: int) -> int:
        news, updates = skipped - self._skipped, of - self._of
        self._skipped, self._of = skipped, of
        if self._in_a_row == 1:
            return news
        self.row = self.row + news if news == updates else 0
        return self.row if self.row >= self._in_a_row else 0
