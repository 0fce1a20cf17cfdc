"""Track the epochs of a run: duration, remaining time and history."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from flodl.core.eta import seconds_left

from ..events import Event
from ..snapshot import epoch_record, merge_history


class EpochTracker:
    """Time the epochs of a run and keep their history, including epochs from before a resume.

    >>> epochs = EpochTracker([])
    >>> event = epochs.end(0, {"loss": 0.5}, duration=2.0, total_epochs=3)
    >>> event.data["duration_s"], event.data["eta_s"], epochs.history[0]["epoch"]
    (2.0, 4.0, 1)
    """

    def __init__(self, previous: Iterable[Mapping[str, Any]]) -> None:
        self._records = [dict(record) for record in previous]
        self.durations = {int(old["epoch"]) - 1: old["duration"] for old in self._records if old["duration"]}
        self.total_s = 0.0  # only the epochs of this process, not those from before a resume
        self._started_s = time.monotonic()
        self._in_loop = False

    @property
    def history(self) -> list[dict[str, Any]]:
        """Every epoch so far, in order."""
        return merge_history(self._records)

    def enter_loop(self) -> None:
        """Start timing the first epoch; the time before it is setup."""
        if not self._in_loop:
            self._in_loop = True
            self._started_s = time.monotonic()

    def end(
        self,
        epoch: int,
        metrics: Mapping[str, float],
        *,
        duration: float | None,
        total_epochs: int,
        rank: int = 0,
    ) -> Event:
        """End an epoch, counted from 0, and return its event."""
        now_s = time.monotonic()
        duration_s = now_s - self._started_s if duration is None else float(duration)
        self._started_s, self._in_loop = now_s, True
        self.total_s += duration_s
        self.durations[epoch] = duration_s
        eta_s = seconds_left(self.durations, done=epoch + 1, total_epochs=total_epochs)
        data = {"epoch": epoch, "metrics": metrics, "duration_s": duration_s, "eta_s": eta_s}
        event = Event("epoch", data, rank=rank)
        self._records.append(epoch_record(event, total_epochs))
        return event
