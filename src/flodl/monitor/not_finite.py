"""Numbers that JSON cannot hold: null stands in their place, and their names stand beside.

So whoever reads the data as numbers finds numbers or null, and the page can still say what there was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


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


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
