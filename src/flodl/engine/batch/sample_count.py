"""How the number of samples of the first batch was found, and whether later batches contradict it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .samples import (
    ambiguous_samples,
    is_surely_time_first,
    leading_lengths,
    other_rows,
    time_steps_of,
    varying_samples,
)
from .time_first import Calls, leading_dimensions, varying_rows


@dataclass
class SampleCount:
    """Notices batches whose time steps, for example, count as samples, once their number varies.

    >>> import torch
    >>> count, lengths = SampleCount(), torch.zeros(4, dtype=torch.int64)
    >>> count.compare((torch.zeros(7, 4, 3), lengths), 7)
    False
    >>> print(count.note)
    the first tensor of a batch has 7 rows and others have 4; it counts as 7 samples...
    >>> count.compare((torch.zeros(9, 4, 3), lengths), 9), count.varies[:36]
    (True, 'a batch counts as 9 samples, the row')
    """

    # Whether the number of samples was given, or a note has said how it was guessed.
    is_explicit: bool = False
    # How it was guessed.
    note: str = ""
    # The time steps and samples of the first batch, if the steps count as samples.
    time_steps: tuple[int, int] | None = None
    # The same as long as nothing has confirmed that these are time steps.
    possible_steps: tuple[int, int] | None = None
    # The same if recurrent modules read the rows of all tensors as time steps.
    time_first: tuple[int, int] | None = None
    # The rows of the first tensor and of all others in the first batch, if they differ and are not steps.
    other_rows: tuple[int, int] | None = None
    # A warning, once one of these numbers has varied.
    varies: str = ""

    def compare(self, batch: tuple[Any, ...], samples: int) -> bool:
        """Compare a batch of a new form with the first one; return whether there is a new warning."""
        before = self.varies
        if not self.is_explicit and len(lengths := leading_lengths(batch)) > 1:
            self._guess(batch, lengths)
        elif self.other_rows is not None:
            self._compare_other_rows(other_rows(batch))
        elif self.time_steps is not None:
            self._compare_time_steps(time_steps_of(batch), samples)
        elif self.time_first is not None and not self.is_explicit:
            self._compare_time_first(leading_dimensions(batch))
        return self.varies != before

    def learn(self, batch: tuple[Any, ...], calls: Calls, possible: tuple[int, int] | None) -> None:
        """Learn from the calls of the model with this batch whether it reads time steps first."""
        if possible is not None and calls.confirm(possible):
            self.time_steps = possible
        leading = leading_dimensions(batch)
        self.time_first = leading if leading in calls.inputs else None

    def _guess(self, batch: tuple[Any, ...], lengths: list[int]) -> None:
        self.is_explicit, self.note = True, ambiguous_samples(lengths)
        if (found := time_steps_of(batch)) is not None and is_surely_time_first(batch):
            self.time_steps = found
        else:
            self.possible_steps = found
            self.other_rows = other_rows(batch) if found is None else None

    def _compare_other_rows(self, now: tuple[int, int] | None) -> None:
        before = self.other_rows
        # As many samples as in the first batch, although all other tensors have a different length.
        if before is not None and now is not None and now[0] == before[0] and now != before:
            self.varies, self.other_rows = varying_samples(before, now), None

    def _compare_time_steps(self, now: tuple[int, int] | None, samples: int) -> None:
        before = self.time_steps
        if before is not None and now is not None and now != before and now[0] == samples:
            self.varies, self.time_steps = varying_samples(before, now), None

    def _compare_time_first(self, now: tuple[int, int] | None) -> None:
        before = self.time_first
        if before is not None and now is not None and now[1] != before[1]:
            self.varies, self.time_first = varying_rows(before, now), None
