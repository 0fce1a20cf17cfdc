"""Values within epochs: which of them are taken, and at which step of the run they lie."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from .numbers import Given, HasMetrics, as_pairs, held


class Steps:
    """Take at most `rate` values of each metric in a second, or all of them if that is None.

    >>> steps = Steps(0.001)
    >>> steps.take(0, {"loss": 0.5}), steps.take(0, {"accuracy": 0.9}), steps.take(1, {"loss": 0.4})
    ((0, {'loss': 0.5}), (0, {'accuracy': 0.9}), None)

    Steps that start again with a later epoch are counted on, and `on_restart` is called once:

    >>> steps = Steps(None)
    >>> [steps.take(step, {"loss": 0.5}, epoch)[0] for epoch in range(3) for step in range(4)]
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]

    `last` is the last step and its epoch of before a run was continued.
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
        # Sets of names that come together, so that a step at which nothing is taken costs one look.
        self._sets: dict[Hashable, _Set] = {}
        self._due_s: dict[str, float] = {}
        # Where each epoch begins, once it is known that steps start again, and the last step of them all.
        self._starts: dict[int, int] = {}
        self._highest = -1
        self._restarts = False

    def take(self, step: int, metrics: Given, epoch: int | None = None) -> tuple[int, dict[str, Any]] | None:
        """Give the step of the run and the values to tell, or nothing where it is too early again."""
        if isinstance(metrics, Mapping):
            key: Hashable = tuple(metrics)
        elif isinstance(metrics, HasMetrics):
            key = type(metrics)  # whatever it has is asked for only when it is taken
        else:
            metrics = dict(as_pairs(metrics))
            key = tuple(metrics)
        together = self._sets.get(key)
        if together is None:
            values = _held(metrics)  # what is no metric is refused before anything is remembered
            together = self._sets[key] = _Set(*self._last)
        else:
            values = None
        if epoch is not None and epoch != together.epoch:
            self._enter(together, step, epoch)
        together.step = step = together.start + step
        if together.start and step > self._highest:
            self._highest = step
        now_s = time.monotonic()
        if now_s < together.due_s:
            return None
        taken = self._due(_held(metrics) if values is None else values, now_s)
        together.due_s = min((self._due_s[name] for name in taken), default=now_s + self._interval_s)
        return (step, taken) if taken else None

    def _due(self, values: dict[str, Any], now_s: float) -> dict[str, Any]:
        """Leave out the metrics that were taken a moment ago together with others."""
        due = {name: value for name, value in values.items() if now_s >= self._due_s.get(name, -math.inf)}
        self._due_s.update(dict.fromkeys(due, now_s + self._interval_s))
        return due

    def _enter(self, together: _Set, step: int, epoch: int) -> None:
        """Find out where an epoch begins: at 0 if steps count from the start of the run, as they should."""
        has_grown, before = epoch > together.epoch, together.step
        together.epoch = epoch
        goes_back = step < before
        if not self._restarts and has_grown and goes_back:
            self._restarts = True
            self._highest = max(other.step for other in self._sets.values())
            self._on_restart()
        if self._restarts and (goes_back or together.start > 0 or before < 0):
            if epoch not in self._starts:
                self._starts[epoch] = self._highest + 1 if has_grown else 0
            together.start = self._starts[epoch]


class _Set:
    """Names that come together: when they are due again, and where they were last."""

    __slots__ = ("due_s", "epoch", "start", "step")

    def __init__(self, step: int, epoch: int) -> None:
        self.due_s = -math.inf
        self.start = 0
        self.step = step
        self.epoch = epoch


def _held(metrics: Given) -> dict[str, Any]:
    return {name: held(name, value) for name, value in as_pairs(metrics)}
