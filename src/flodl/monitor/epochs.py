"""The epochs of a run: as they end, and as people read them (counted from 1, with what is left)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from flodl.core.eta import seconds_left

from .events import Event


class Epochs:
    """Keep the epochs of a run that is under way, with those of before it was continued.

    >>> epochs = Epochs([])
    >>> event = epochs.end(0, {"loss": 0.5}, duration=2.0, total_epochs=3)
    >>> event.data["duration_s"], event.data["eta_s"], epochs.history[0]["epoch"]
    (2.0, 4.0, 1)
    """

    def __init__(self, known: Iterable[Mapping[str, Any]]) -> None:
        self._records = [dict(record) for record in known]
        self.durations = {int(old["epoch"]) - 1: old["duration"] for old in self._records if old["duration"]}
        self.total_s = 0.0  # of the epochs that ended here, not of those of before
        self._began_s = time.monotonic()
        self._in_loop = False

    @property
    def history(self) -> list[dict[str, Any]]:
        """Every epoch so far, in order."""
        return history_of(self._records)

    def enter_loop(self) -> None:
        """Begin to time the first epoch: what came before is set-up."""
        if not self._in_loop:
            self._in_loop = True
            self._began_s = time.monotonic()

    def end(
        self,
        epoch: int,
        metrics: Mapping[str, float],
        *,
        duration: float | None,
        total_epochs: int,
        rank: int = 0,
    ) -> Event:
        """End an epoch, counted from 0, and give the event that tells it."""
        now_s = time.monotonic()
        duration_s = now_s - self._began_s if duration is None else float(duration)
        self._began_s, self._in_loop = now_s, True
        self.total_s += duration_s
        self.durations[epoch] = duration_s
        eta_s = seconds_left(self.durations, done=epoch + 1, total_epochs=total_epochs)
        data = {"epoch": epoch, "metrics": metrics, "duration_s": duration_s, "eta_s": eta_s}
        event = Event("epoch", data, rank=rank)
        self._records.append(epoch_record(event, total_epochs))
        return event


def epoch_record(event: Event, total_epochs: int) -> dict[str, Any]:
    """Give an epoch as people read it."""
    data = event.data
    return {
        "epoch": int(data.get("epoch", 0)) + 1,
        "total": total_epochs,
        "duration": data.get("duration_s"),
        "eta": data.get("eta_s"),
        "time_s": event.time_s,
        "metrics": dict(data.get("metrics", {})),
    }


def history_of(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Put epochs in order and keep what holds: one that comes again takes those after it away, as for steps.

    >>> passed = [{"epoch": 1, "id": 1}, {"epoch": 2, "id": 2}, {"epoch": 3, "id": 3}, {"epoch": 2, "id": 4}]
    >>> [record["id"] for record in history_of(passed)]
    [1, 4]
    """
    latest: dict[int, dict[str, Any]] = {}
    highest = -1
    for record in records:
        epoch = record["epoch"]
        if epoch < highest and epoch in latest:
            latest = {kept: latest[kept] for kept in latest if kept < epoch}
            highest = epoch
        highest = max(highest, epoch)
        latest[epoch] = dict(record)
    return [latest[epoch] for epoch in sorted(latest)]
