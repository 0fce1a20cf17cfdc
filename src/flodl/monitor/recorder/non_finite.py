"""Alerts for metrics that become NaN or infinite."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..events import Event


class NonFiniteAlert:
    """Alert when a metric is not finite, once per metric.

    >>> alert = NonFiniteAlert(print)
    >>> for step in range(3):
    ...     alert.check(Event("metrics", {"step": step, "metrics": {"loss": math.nan}}))
    loss is nan at step 0
    """

    def __init__(self, alert: Callable[[str], object]) -> None:
        self._alert = alert
        self._seen: set[str] = set()

    def check(self, event: Event) -> None:
        """Check the metrics of an "epoch" or "metrics" event."""
        for name, value in event.data["metrics"].items():
            if name not in self._seen and isinstance(value, float) and not math.isfinite(value):
                self._seen.add(name)
                is_epoch = event.kind == "epoch"
                where = f"in epoch {event.data['epoch'] + 1}" if is_epoch else f"at step {event.data['step']}"
                self._alert(f"{name} is {value} {where}")
