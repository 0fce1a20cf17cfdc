"""Choose which per-step metrics are recorded, and number their steps from the start of the run."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Hashable, Mapping
from numbers import Real
from typing import Any, NamedTuple

from flodl.core.errors import MetricError

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

    The same happens without an epoch. If steps go back otherwise, `on_rewind` is called once with the step
    and the one before it. `last` is the last step and its epoch from before a resume.
    """

    def __init__(
        self,
        rate: float | None,
        *,
        last: tuple[int, int] = (-1, -1),
        on_restart: Callable[[], object] = lambda: None,
        on_rewind: Callable[[int, int], object] = lambda step, previous: None,
    ) -> None:
        self._interval_s = 1.0 / rate if rate else 0.0
        self._last = last
        self._on_restart, self._on_rewind = on_restart, on_rewind
        # Metrics that are logged together share a group, so that a skipped step costs a single lookup.
        self._groups: dict[Hashable, _Group] = {}
        self._due_s: dict[str, float] = {}
        # The first step of each epoch, once steps are known to restart, and the highest step of the run.
        self._epoch_starts: dict[int, int] = {}
        self._highest = -1
        self._restarts = self._rewound = False
        # The first step of each pass over the data, if steps restart without an epoch.
        self._pass_starts: dict[int, int] = {}
        self._recorded: dict[str, int] = {}

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
            values = detached(metrics)  # raises for an invalid metric before a group is created
            group = self._groups[key] = _Group(*self._last, first=step)
            group.has_tensors = any(hasattr(value, "detach") for _, value in as_pairs(metrics))
            if epoch is None and self._pass_starts:
                group.passes = max(self._pass_starts)
                group.start = self._pass_starts[group.passes]
        else:
            values = None
        if epoch is not None and epoch != group.epoch:
            self._enter_epoch(group, step, epoch)
        elif step < group.counter:
            self._go_back(group, step, epoch)
        group.counter = step
        group.step = step = group.start + step
        if group.start and step > self._highest:
            self._highest = step
        now_s = time.monotonic()
        if now_s < group.due_s:
            group.keep(step, metrics)
            return None
        group.skipped = None
        taken = self._take_due(detached(metrics) if values is None else values, now_s)
        self._recorded.update(dict.fromkeys(taken, step))
        group.due_s = min((self._due_s[name] for name in taken), default=now_s + self._interval_s)
        return (step, taken) if taken else None

    def take_skipped(self) -> list[tuple[int, int, dict[str, Any]]]:
        """Return the last value of each metric if it was not recorded: steps, epochs (or -1) and values."""
        found: dict[str, tuple[int, int, Any]] = {}
        for key, group in self._groups.items():
            skipped, group.skipped = group.skipped, None
            if skipped is None or not isinstance(key, tuple):
                continue
            for name, value in zip(key, _Skipped(*skipped).unchanged()):
                if value is None or skipped[0] <= max(
                    self._recorded.get(name, -1), found.get(name, (-1,))[0]
                ):
                    continue
                # An invalid value raises when it is due; here, it must not end the run.
                with contextlib.suppress(MetricError, RuntimeError):
                    found[name] = skipped[0], group.epoch, detach_value(name, value)
        by_step: dict[tuple[int, int], dict[str, Any]] = {}
        for name, (step, epoch, value) in found.items():
            by_step.setdefault((step, epoch), {})[name] = value
            self._recorded[name] = step
        return [(step, epoch, by_step[step, epoch]) for step, epoch in sorted(by_step)]

    def _take_due(self, values: dict[str, Any], now_s: float) -> dict[str, Any]:
        """Drop the metrics that were recorded a moment ago as part of a different group."""
        due = {name: value for name, value in values.items() if now_s >= self._due_s.get(name, -math.inf)}
        self._due_s.update(dict.fromkeys(due, now_s + self._interval_s))
        return due

    def _go_back(self, group: _Group, step: int, epoch: int | None) -> None:
        """Continue the numbering if steps restart where they began, or else report that they go back."""
        if epoch is not None or step > group.first:
            self._report_rewind(step, group.counter)
            return
        if not self._pass_starts:
            self._on_restart()
        group.passes += 1
        start = 1 + max(other.step for other in self._groups.values())
        group.start = max(self._pass_starts.setdefault(group.passes, start), group.step + 1)

    def _report_rewind(self, step: int, previous: int) -> None:
        if not self._rewound:
            self._rewound = True
            self._on_rewind(step, previous)

    def _enter_epoch(self, group: _Group, step: int, epoch: int) -> None:
        """Set the first step of an epoch; it is 0 if steps are counted from the start of the run."""
        is_later, previous = epoch > group.epoch, group.step
        group.epoch = epoch
        goes_back = step < previous
        if goes_back and not is_later and group.counter >= 0:
            self._report_rewind(step, previous)
        if not self._restarts and is_later and goes_back:
            self._restarts = True
            self._highest = max(other.step for other in self._groups.values())
            self._on_restart()
        if self._restarts and (goes_back or group.start > 0 or previous < 0):
            if epoch not in self._epoch_starts:
                self._epoch_starts[epoch] = self._highest + 1 if is_later else 0
            group.start = self._epoch_starts[epoch]


class _Skipped(NamedTuple):
    """Values that were not due; tensors are not copied, so one that changes later is dropped."""

    step: int
    values: tuple[Any, ...]
    versions: list[int] | None

    def unchanged(self) -> list[Any]:
        """Return the values, None for each that has changed."""
        if self.versions is None:
            return [value if isinstance(value, Real) else None for value in self.values]
        return [
            value if getattr(value, "_version", -1) == version else None
            for value, version in zip(self.values, self.versions)
        ]


class _Group:
    """Metrics that are logged together: when they are due, their last step and epoch, what was skipped."""

    __slots__ = ("counter", "due_s", "epoch", "first", "has_tensors", "passes", "skipped", "start", "step")

    def __init__(self, step: int, epoch: int, *, first: int) -> None:
        self.due_s = -math.inf
        self.start = self.passes = 0
        self.step = step
        self.epoch = epoch
        # The first and the last step as the caller counts them.
        self.first, self.counter = first, -1
        self.has_tensors = False
        # A plain tuple: this is set at every step.
        self.skipped: tuple[int, tuple[Any, ...], list[int] | None] | None = None

    def keep(self, step: int, metrics: Metrics) -> None:
        """Keep values that are not due, in case they are the last ones; nothing is copied or read."""
        if not isinstance(metrics, dict):
            self.skipped = None
            return
        values = tuple(metrics.values())
        versions = None
        if self.has_tensors:
            try:
                versions = [getattr(value, "_version", -1) for value in values]
            except RuntimeError:  # tensors of inference mode have no version
                self.skipped = None
                return
        self.skipped = step, values, versions


def detached(metrics: Metrics) -> dict[str, Any]:
    """Return values that later steps cannot change; those on a device are not read."""
    return {name: detach_value(name, value) for name, value in as_pairs(metrics)}
