"""Schedules that are functions: not called in advance; their rates are checked after each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flodl.optim import PlateauScheduler, StepSchedule

from .schedule_length import NEGLIGIBLE


def function_has_decayed(
    schedule: Any, *, initial: float, rates: Sequence[float], updates: int, epochs: int
) -> str:
    """Return a warning if a function has decayed completely in the last epoch, and more follow, or "".

    `initial` is the rate of the optimizer, and `rates` are those at the end of each epoch so far.

    >>> halved = lambda epoch: 1e-2 * 0.5**epoch
    >>> function_has_decayed(halved, initial=1e-2, rates=[1e-8], updates=20, epochs=3)[:63]
    'the learning rate fell from 0.01 to 1e-08 within 20 updates, an'
    >>> function_has_decayed(halved, initial=1e-2, rates=[1e-2, 1e-8], updates=20, epochs=2)
    ''
    """
    if schedule is None or isinstance(schedule, StepSchedule | PlateauScheduler) or len(rates) >= epochs:
        return ""
    *earlier, last = rates
    highest = max(initial, *earlier) if earlier else initial
    was_over = bool(earlier) and earlier[-1] <= highest * NEGLIGIBLE
    if was_over or last > highest * NEGLIGIBLE:
        return ""
    left = epochs - len(rates)
    return (
        f"the learning rate fell from {highest:g} to {last:g} within {updates} updates, and "
        f"{left} more epoch{'s' * (left > 1)} will hardly change the weights. A schedule function gets "
        "the number of updates: if it was meant in epochs, divide it by those of an epoch "
        "(step // len(loader))."
    )
