"""Numbers that JSON cannot hold: null stands in their place, and their names stand beside.

So whoever reads the data as numbers finds numbers or null, and the page can still say what there was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .events import Event


def by_name(numbers: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Give `not_finite` for a record with numbers by name, or nothing if all are finite.

    >>> by_name({"loss": math.nan, "accuracy": 0.5})
    {'not_finite': {'loss': 'nan'}}
    >>> by_name({"accuracy": 0.5})
    {}
    """
    found = {name: str(value) for name, value in numbers.items() if _is_not_finite(value)}
    return {"not_finite": found} if found else {}


def by_place(numbers: Sequence[Any]) -> dict[str, dict[str, list[int]]]:
    """Give `not_finite` for a line: the places of each kind of them.

    >>> by_place([1.0, math.nan, math.inf, math.nan])
    {'not_finite': {'nan': [1, 3], 'inf': [2]}}
    """
    found: dict[str, list[int]] = {}
    for place, value in enumerate(numbers):
        if _is_not_finite(value):
            found.setdefault(str(value), []).append(place)
    return {"not_finite": found} if found else {}


class NotFinite:
    """Alert of each metric that is not finite, once.

    >>> watch = NotFinite(print)
    >>> for step in range(3):
    ...     watch.look(Event("metrics", {"step": step, "metrics": {"loss": math.nan}}))
    loss is nan at step 0
    """

    def __init__(self, alert: Callable[[str], object]) -> None:
        self._alert = alert
        self._seen: set[str] = set()

    def look(self, event: Event) -> None:
        """Look at the metrics of an epoch or of a step."""
        for name, value in event.data["metrics"].items():
            if name not in self._seen and _is_not_finite(value):
                self._seen.add(name)
                is_epoch = event.kind == "epoch"
                where = f"in epoch {event.data['epoch'] + 1}" if is_epoch else f"at step {event.data['step']}"
                self._alert(f"{name} is {value} {where}")


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
