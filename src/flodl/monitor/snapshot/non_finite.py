"""Describe NaN and infinities next to the nulls that replace them, because JSON cannot represent them.

Readers find only numbers or null in the data, and the page can still show what the value was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def by_name(numbers: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return a `not_finite` field for named numbers, or an empty dict if all of them are finite.

    >>> by_name({"loss": math.nan, "accuracy": 0.5})
    {'not_finite': {'loss': 'nan'}}
    >>> by_name({"accuracy": 0.5})
    {}
    """
    found = {name: str(value) for name, value in numbers.items() if _is_not_finite(value)}
    return {"not_finite": found} if found else {}


def by_index(numbers: Sequence[Any]) -> dict[str, dict[str, list[int]]]:
    """Return a `not_finite` field for a list of numbers: the indices of each non-finite value.

    >>> by_index([1.0, math.nan, math.inf, math.nan])
    {'not_finite': {'nan': [1, 3], 'inf': [2]}}
    """
    found: dict[str, list[int]] = {}
    for index, value in enumerate(numbers):
        if _is_not_finite(value):
            found.setdefault(str(value), []).append(index)
    return {"not_finite": found} if found else {}


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
