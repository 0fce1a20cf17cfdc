"""Reports that updates are skipped because something is not finite, without waiting for the device."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..report import Cause, Journal

# After a warning, the next one comes when this many times as many updates were skipped.
_AGAIN_AFTER = 16
# The loss scale of fp16 starts at 2¹⁶ and is halved at every overflow. After this many in a row it is below
# one and cannot be the cause.
_OVERFLOWS_IN_A_ROW = 24


class CountCopy(NamedTuple):
    """A copy of the count to the host, the event that ends it, and the number of updates by then."""

    on_host: Tensor
    copied: torch.cuda.Event
    updates: int


def start_copy(num_skipped: Tensor, updates: int) -> CountCopy:
    """Start to copy the count from the device to the host."""
    count = torch.zeros((), dtype=num_skipped.dtype).pin_memory()
    count.copy_(num_skipped, non_blocking=True)
    return CountCopy(count, torch.cuda.current_stream(num_skipped.device).record_event(), updates)


class SkippedUpdates:
    """Warns when the first updates are skipped, and again when there are many more.

    On CUDA, a check reads the copy that the previous check has started.

    >>> from flodl.core.log import set_verbosity
    >>> set_verbosity("quiet")
    >>> journal, skipped = Journal(), SkippedUpdates(with_scaler=False)
    >>> skipped.check(torch.tensor(2.0), 8, journal, step=8)
    >>> journal.events[0].reason
    '2 of 8 updates were skipped, because the loss or a gradient was not finite. ...
    >>> set_verbosity("normal")
    """

    def __init__(self, *, with_scaler: bool) -> None:
        self._with_scaler = with_scaler
        # Whether the caller reports skipped updates itself; then there is one event and no warning.
        self.is_quiet = False
        # The numbers of skipped updates and of all updates at the last reading.
        self._known, self._known_at = 0, 0
        # How many updates in a row were skipped at least, up to the last reading.
        self._row = 0
        self._told = 0
        self._copy: CountCopy | None = None

    def __getstate__(self) -> dict[str, Any]:
        # An event of CUDA cannot be copied.
        return {**vars(self), "_copy": None}

    def check(
        self, num_skipped: Tensor, updates: int, journal: Journal, step: int, *, wait: bool = False
    ) -> None:
        """Warn if updates were skipped, as far as known; with `wait`, as of now."""
        if updates == self._known_at:
            return
        if wait or not num_skipped.is_cuda:
            self._copy = None
            self._compare(int(num_skipped), updates, journal, step)
            return
        if self._copy is not None:
            if not self._copy.copied.query():  # type: ignore[no-untyped-call]
                return
            self._compare(int(self._copy.on_host), self._copy.updates, journal, step)
        self._copy = start_copy(num_skipped, updates)

    def forget(self, skipped: int, updates: int) -> None:
        """Continue from these numbers, as after a resume."""
        self._known, self._known_at = skipped, updates
        self._row, self._told, self._copy = 0, 0, None

    def _compare(self, skipped: int, updates: int, journal: Journal, step: int) -> None:
        new, since = skipped - self._known, updates - self._known_at
        self._known, self._known_at = skipped, updates
        self._row = self._row + new if new == since else 0
        if new <= 0 or (self._with_scaler and self._row < _OVERFLOWS_IN_A_ROW):
            return
        if skipped < self._told * _AGAIN_AFTER or (self.is_quiet and self._told):
            return
        self._told = skipped
        reason = _reason(skipped, updates)
        if self.is_quiet:
            journal.add(step, "skipped", Cause.NOT_FINITE, reason)
        else:
            journal.warn(step, "skipped", Cause.NOT_FINITE, reason)


def _reason(skipped: int, updates: int) -> str:
    if skipped < updates:
        what = f"{skipped} of {updates} updates {'was' if skipped == 1 else 'were'} skipped"
    elif updates == 1:
        what = "the first update was skipped"
    else:
        what = f"all {updates} updates so far were skipped"
    return (
        f"{what}, because the loss or a gradient was not finite. Such an update changes no parameter. To "
        "find the cause, call flodl.engine.find_non_finite(step, (x, y)) with a batch for which step.skipped "
        "is true"
    )
