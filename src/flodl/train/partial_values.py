"""Named values that cover only a part of an epoch, because the program changed before it was resumed."""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose
from typing import Any

# The sums of the values that occur together: their names, and the weight with their sums.
Sums = Sequence[tuple[Sequence[str], Sequence[float]]]


def partial_values(before: Sums, now: Sums) -> list[str]:
    """Return the values of all batches before a resume and of none after it, or the reverse.

    A value that some batches lack on both sides is left to the step function.

    >>> before = [(["loss", "acc"], [64.0, 40.0, 32.0])]
    >>> partial_values(before, [*before, (["loss", "accuracy"], [86.0, 50.0, 43.0])])
    ['acc', 'accuracy']
    >>> partial_values(before, [(["loss", "acc"], [150.0, 90.0, 75.0])])
    []
    """
    earlier, total = _weights(before), _weights(now)
    first, all_of_it = earlier.get("loss", 0.0), total.get("loss", 0.0)
    if not 0.0 < first < all_of_it:
        return []
    missing_after = [
        name for name, weight in earlier.items() if isclose(weight, first) and isclose(total[name], weight)
    ]
    missing_before = [
        name
        for name, weight in total.items()
        if not earlier.get(name, 0.0) and isclose(weight, all_of_it - first)
    ]
    return missing_after + missing_before


def _weights(sums: Sums) -> dict[str, float]:
    found: dict[str, Any] = {}
    for names, numbers in sums:
        for name in names:
            found[name] = found.get(name, 0.0) + numbers[0]
    return found
