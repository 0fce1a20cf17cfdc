"""The metrics of a graph that belong to the epoch that is logged."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

from ..metrics import HasMetrics, Metrics, as_numbers


class GraphMetrics:
    """Read from graphs only what they closed since they were logged last; other metrics are read as they are.

    The first time, that is what a graph closed since this object was created. `alert` is called once if a
    graph has nothing new.
    """

    def __init__(self, alert: Callable[[str], object]) -> None:
        self._alert: Callable[[str], object] | None = alert
        self._started_s = time.monotonic()
        self._logged: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()

    def read(self, epoch: int, metrics: Metrics) -> dict[str, float]:
        """Return the metrics of an epoch as floats."""
        if not isinstance(metrics, HasMetrics) or not hasattr(metrics, "trends"):
            return as_numbers(metrics)
        trends: Any = metrics.trends()
        latest = {name: (trends[name].epochs[-1], trends[name].latest) for name in trends if trends[name]}
        logged = self._logged.get(metrics)
        if logged is None:
            found = {name: value for name, (_, value) in latest.items() if self._is_recent(trends[name])}
        else:
            found = {name: value for name, (at, value) in latest.items() if logged.get(name) != (at, value)}
        self._logged[metrics] = latest
        if not found and self._alert is not None:
            alert, self._alert = self._alert, None
            earlier = " Metrics closed before the monitor was created are not logged." if latest else ""
            alert(
                f"the graph has no new metrics for epoch {epoch + 1}. Record metrics with record or collect, "
                f"and call end_epoch() before the graph is logged.{earlier if logged is None else ''}"
            )
        return as_numbers(found)

    def _is_recent(self, trend: Any) -> bool:
        closed_s = getattr(trend, "closed_s", None)
        return closed_s is not None and closed_s >= self._started_s
