"""Choose which per-step metrics are recorded, and number their steps from the start of the run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from ..metrics import HasMetrics, Metrics, as_pairs, detach_value


class StepSampler:
    """Record at most `rate` values of each metric per second, or all of them if `rate` is None.

    >>> steps = StepSampler(0.001)
    >>> steps.sample(0, {"loss": 0.5}), steps.sample(0, {"accuracy": 0.9}), steps.sample(1, {"loss": 0.4})
    ((0, {'loss': 0.5}), (0, {'accuracy': 0.9}), None)

    If steps restart at 0 in a later epoch, numbering continues and `on_restart` is called once:

    >>> steps = StepSampler(None)
    >>> [steps.sample(step, {"loss": 0.5}, epoch)[0] for epoch in range(3) for step in range(4)]
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]

    `last` is the last step and its epoch from before a resume.
    """

    def __init__(
        self,
        rate: float | None,
        *,
        last: tuple[int, int] = (-1, -1),
        on_restart: Callable[[], object] = lambda: None,
    ) -> None:
        self._interval_s = 1.0 / rate if rate else 0.0
        self._last = last
        self._on_restart = on_restart
        # Metrics that are logged together share a group, so that a skipped step costs a single lookup.
        self._groups: dict[Hashable, _Group] = {}
        self._due_s: dict[str, float] = {}
        # The first step of each epoch, once steps are known to restart, and the highest step of the run.
        self._epoch_starts: dict[int, int] = {}
        self._highest = -1
        self._restarts = False

    def sample(
        self, step: int, metrics: Metrics, epoch: int | None = None
    ) -> tuple[int, dict[str, Any]] | None:
        """Return the step of the run and the values to record, or None if no value is due yet."""
        if isinstance(metrics, Mapping):
            key: Hashable = tuple(metrics)
        elif isinstance(metrics, HasMetrics):
            key = type(metrics)  # its metrics are read only when a value is due
        else:
            metrics = dict(as_pairs(metrics))
            key = tuple(metrics)
        group = self._groups.get(key)
        if group is None:
            values = _detached(metrics)  # raises for an invalid metric before a group is created
            group = self._groups[key] = _Group(*self._last)
        else:
            values = None
        if epoch is not None and epoch != group.epoch:
            self._enter_epoch(group, step, epoch)
        group.step = step = group.start + step
        if group.start and step > self._highest:
            self._highest = step
        now_s = time.monotonic()
        if now_s < group.due_s:
            return None
        taken = self._take_due(_detached(metrics) if values is None else values, now_s)
        group.due_s = min((self._due_s[name] for name in taken), default=now_s + self._interval_s)
        return (step, taken) if taken else None

    def _take_due(self, values: dict[str, Any], now_s: float) -> dict[str, Any]:
        """Drop the metrics that were recorded a moment ago as part of a different group."""
        due = {name: value for name, value in values.items() if now_s >= self._due_s.get(name, -math.inf)}
        self._due_s.update(dict.fromkeys(due, now_s + self._interval_s))
        return due

    def _enter_epoch(self, group: _Group, step: int, epoch: int) -> None:
        """Set the first step of an epoch; it is 0 if steps are counted from the start of the run."""
        is_later, previous = epoch > group.epoch, group.step
        group.epoch = epoch
        goes_back = step < previous
        if not self._restarts and is_later and goes_back:
            self._restarts = True
            self._highest = max(other.step for other in self._groups.values())
            self._on_restart()
        if self._restarts and (goes_back or group.start > 0 or previous < 0):
            if epoch not in self._epoch_starts:
                self._epoch_starts[epoch] = self._highest + 1 if is_later else 0
            group.start = self._epoch_starts[epoch]


class _Group:
    """Metrics that are logged together: when they are due, and their last step and epoch."""

    __slots__ = ("due_s", "epoch", "start", "step")

    def __init__(self, step: int, epoch: int) -> None:
        self.due_s = -math.inf
        self.start = 0
        self.step = step
        self.epoch = epoch


def _detached(metrics: Metrics) -> dict[str, Any]:
    return {name: detach_value(name, value) for name, value in as_pairs(metrics)}
