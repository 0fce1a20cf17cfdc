"""Which of the values of a metric is the best; differences that are nothing but rounding do not count."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .metric_modes import Mode

# A float32 mean of the same samples differs by about 1e-7 if they come in another order or other batches.
ROUNDING = 1e-6


def improves(value: float, best: float, mode: Mode, *, tol: float = 0.0) -> bool:
    """Return whether a value is better than the best so far, by more than `tol` and by more than rounding.

    Values that differ by less than `ROUNDING`, relative to the larger one, are equal. NaN never improves.

    >>> improves(0.843333335, 0.843333332, "max"), improves(0.8434, 0.8433, "max")
    (False, True)
    """
    gain = best - value if mode == "min" else value - best
    return gain > tol and not math.isclose(value, best, rel_tol=ROUNDING)


def best_position(values: Iterable[float], mode: Mode) -> int | None:
    """Return the position of the best value, the first of equal ones; None if no value is a number.

    >>> best_position([0.5, 0.75, math.nan, 0.750000001, 0.25], "max")
    1
    """
    found, best = None, math.nan
    for position, value in enumerate(values):
        is_first = found is None and not math.isnan(value)
        if is_first or (found is not None and improves(value, best, mode)):
            found, best = position, value
    return found
