"""Track the epochs of a run: duration, remaining time and history."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flodl.core.eta import seconds_left

from ..events import Event
from ..metrics import as_numbers, format_value
from ..snapshot import epoch_record, merge_history


def missing_epochs(
    known: Iterable[Mapping[str, Any]], history: Iterable[Mapping[str, Any]], *, rank: int = 0
) -> list[Event]:
    """Return the events of the epochs in a history that are not among those known.

    >>> rows = [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}]
    >>> [event.data for event in missing_epochs([{"epoch": 1}], rows)]
    [{'epoch': 1, 'metrics': {'loss': 0.25}, 'restored': True}]
    """
    found = {record["epoch"] for record in known}
    events = []
    for row in history:
        if row["epoch"] not in found:
            metrics = as_numbers({name: value for name, value in row.items() if name != "epoch"})
            data = {"epoch": row["epoch"] - 1, "metrics": metrics, "restored": True}
            events.append(Event("epoch", data, rank=rank))
    return events


class EpochTracker:
    """Time the epochs of a run and keep their history, including epochs from before a resume.

    >>> epochs = EpochTracker([])
    >>> event = epochs.end(0, {"loss": 0.5}, duration=2.0, total_epochs=3)
    >>> event.data["duration_s"], event.data["eta_s"], epochs.history[0]["epoch"]
    (2.0, 4.0, 1)
    """

    def __init__(
        self, previous: Iterable[Mapping[str, Any]], alert: Callable[[str], object] = lambda message: None
    ) -> None:
        self._records = [dict(record) for record in previous]
        self.durations = {int(old["epoch"]) - 1: old["duration"] for old in self._records if old["duration"]}
        self.total_s = 0.0  # only the time of this process, not that from before a resume
        self._started_s = time.monotonic()
        self._in_loop = False
        # What was logged by this process: the epochs that are kept, the last one, and the messages sent once.
        self._logged = set[int]()
        self._last: int | None = None
        self._alert, self._sent = alert, set[str]()

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
        earlier_s: float = 0.0,
        total_epochs: int,
        rank: int = 0,
    ) -> Event:
        """End an epoch, counted from 0, and return its event. `earlier_s` is from before a resume.

        If the last epoch is ended again, its metrics are merged, and the event has all of them.
        """
        now_s = time.monotonic()
        duration_s = now_s - self._started_s if duration is None else float(duration)
        self._started_s, self._in_loop = now_s, True
        if epoch == self._last:
            earlier = self._records[-1]
            metrics = self._merge(epoch, earlier["metrics"], metrics)
            duration_s += earlier["duration"] if duration is None else 0.0
            self.total_s -= earlier["duration"]
        elif self._last is not None:
            self._check_order(epoch, self._last)
        self._last = epoch
        self._logged.add(epoch)
        if 0 < total_epochs <= epoch:
            self._alert_once(
                "beyond",
                f"epoch {epoch} was logged, but the last of {total_epochs} epochs is epoch "
                f"{total_epochs - 1}. Count epochs from 0, as range does.",
            )
        self.total_s += duration_s - (0.0 if duration is None else min(earlier_s, duration))
        self.durations[epoch] = duration_s
        eta_s = seconds_left(self.durations, done=epoch + 1, total_epochs=total_epochs)
        data = {"epoch": epoch, "metrics": metrics, "duration_s": duration_s, "eta_s": eta_s}
        event = Event("epoch", data, rank=rank)
        self._records.append(epoch_record(event, total_epochs))
        return event

    def add(self, event: Event, total_epochs: int) -> None:
        """Add an epoch of an earlier process; its duration is not known."""
        self._records.append(epoch_record(event, total_epochs))

    def check_progress(self, epoch: int, step: int, num_steps: int | None, total_epochs: int) -> None:
        """Report a position that does not exist in the run, once."""
        call = f"progress({epoch}, {step}{'' if num_steps is None else f', {num_steps}'})"
        if num_steps is not None and step > num_steps:
            self._alert_once(
                "progress",
                f"{call}: step {step} of {num_steps} does not exist. Pass the epoch, the number of steps "
                "done in this epoch, and the number of steps of an epoch.",
            )
        if 0 < total_epochs <= epoch:
            self._alert_once(
                "beyond",
                f"{call}: the last of {total_epochs} epochs is epoch {total_epochs - 1}, counted from 0. "
                "Pass the epoch first, then the step in this epoch.",
            )

    def _check_order(self, epoch: int, last: int) -> None:
        """Report an epoch that is logged after a later one, as `merge_history` will show it."""
        if epoch in self._logged:
            after = "all epochs after it" if epoch < max(self._logged) else "nothing else"
            self._alert_once(
                "again",
                f"epoch {epoch} was logged again after epoch {last} (counted from 0): it replaces the "
                f"earlier one and {after}. Use a separate Monitor, with its own run_dir, for each run.",
            )
            self._logged = {kept for kept in self._logged if kept < epoch}
        elif epoch < last:
            self._alert_once(
                "order",
                f"epoch {epoch} was logged for the first time after epoch {last} (counted from 0): history, "
                "charts and tables show it before that one. Log epochs in increasing order.",
            )

    def _merge(
        self, epoch: int, earlier: Mapping[str, float], metrics: Mapping[str, float]
    ) -> dict[str, float]:
        for name, value in metrics.items():
            before = earlier.get(name, value)
            if before != value and not (math.isnan(before) and math.isnan(value)):
                self._alert_once(
                    name,
                    f"{name} of epoch {epoch} (counted from 0) was logged twice, as {format_value(before)} "
                    f"and as {format_value(value)}: the later value is kept. Use two names to keep both.",
                )
        return {**earlier, **metrics}

    def _alert_once(self, key: str, message: str) -> None:
        if key not in self._sent:
            self._sent.add(key)
            self._alert(message)
