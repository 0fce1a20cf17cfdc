"""Detection of updates that were skipped because a value was not finite, without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor

READ_EVERY = 16
# The loss scale of fp16 starts at 2¹⁶, is halved at every update that overflows, and doubles rarely. After
# this many overflows in a row it is below one and cannot be the cause.
OVERFLOWS_IN_A_ROW = 24


class SkippedUpdates:
    """Report updates that were skipped since the last check, or `in_a_row` consecutive ones.

    On a GPU the count is copied to the host asynchronously at every sixteenth update and read at the next
    one, so a report is at most two checks old. The updates themselves were already skipped on the device.
    """

    def __init__(self, num_skipped: Tensor, *, in_a_row: int = 1) -> None:
        self._count, self._in_a_row = num_skipped, in_a_row
        # The last known count, and the number of updates at that time.
        self._known = self._known_at = 0
        # The number of updates at the check before that.
        self.known_before = 0
        # The length of the run of skipped updates that the last known update ended.
        self.row = 0
        self._on_host: Tensor | None = None
        # The copy under way, and the update after which it was taken.
        self._copy: tuple[torch.cuda.Event, int] | None = None
        if num_skipped.is_cuda:
            self._on_host = torch.zeros((), dtype=num_skipped.dtype).pin_memory()

    def check(self, updates: int) -> int:
        """Return the updates skipped since the last call, as far as known; call this after each update."""
        if self._on_host is None:
            skipped = int(self._count)
            if skipped == self._known and self._in_a_row == 1:
                self.known_before = self._known_at = updates
                return 0
            return self._compare(skipped, updates)
        if updates % READ_EVERY:
            return 0
        found = 0
        if self._copy is not None:
            copied, at = self._copy
            # Always wait: polling would make the update at which a run stops depend on timing.
            copied.synchronize()
            found = self._compare(int(self._on_host), at)
        self._on_host.copy_(self._count, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._copy = event, updates
        return found

    def settle(self, updates: int) -> int:
        """Return what is not known yet; this waits for the device."""
        self._copy = None
        return self._compare(int(self._count), updates)

    def forget(self, updates: int, *, row: int = 0) -> None:
        """Treat the current count as known, as after a resume."""
        # A copy under way still contains the previous count.
        self._copy = None
        self._known, self._known_at, self.row = int(self._count), updates, row
        self.known_before = updates

    def _compare(self, skipped: int, updates: int) -> int:
        new, since = skipped - self._known, updates - self._known_at
        self.known_before = self._known_at
        self._known, self._known_at = skipped, updates
        if self._in_a_row == 1:
            return new
        self.row = self.row + new if new == since else 0
        return self.row if self.row >= self._in_a_row else 0
