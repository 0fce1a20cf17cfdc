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

    On a GPU the count is copied to the host beside the training and read at a later look, so the news is
    two looks old or, where the device is far behind, a few more; the updates themselves were skipped at
    once, on the device.
    """

    def __init__(self, num_skipped: Tensor, *, in_a_row: int = 1) -> None:
        self._count, self._in_a_row = num_skipped, in_a_row
        self._updates = 0
        # What is known: so many skipped, of so many updates, the last ones of them in a row.
        self._skipped = self._of = self._row = 0
        self._on_host: Tensor | None = None
        self._copied: tuple[torch.cuda.Event, int] | None = None
        if num_skipped.is_cuda:
            self._on_host = torch.zeros((), dtype=num_skipped.dtype).pin_memory()

    def skipped_since(self) -> int:
        """Give how many updates were skipped since the last call, as far as is known; ask after each one."""
        self._updates += 1
        if self._on_host is None:
            return self._take(int(self._count), self._updates)
        if self._updates % LOOK_EVERY:
            return 0
        news = 0
        if self._copied is not None:
            if not self._copied[0].query():  # type: ignore[no-untyped-call]
                return 0  # a device that is far behind gets the time it needs
            news = self._take(int(self._on_host), self._copied[1])
        self._on_host.copy_(self._count, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._copied = event, self._updates
        return news

    def settle(self) -> int:
        """Give what is not known yet; this waits for the device."""
        self._copied = None
        return self._take(int(self._count), self._updates)

    def forget(self) -> None:
        """Take the present count for known, as after a resume."""
        # A copy that is on its way still has the count of before.
        self._copied = None
        self._skipped, self._of, self._row = int(self._count), self._updates, 0

    def _take(self, skipped: int, of: int) -> int:
        news, updates = skipped - self._skipped, of - self._of
        self._skipped, self._of = skipped, of
        if self._in_a_row == 1:
            return news
        self._row = self._row + news if news == updates else 0
        return self._row if self._row >= self._in_a_row else 0
