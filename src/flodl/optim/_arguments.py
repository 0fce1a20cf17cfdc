"""Checks of schedule and clipping arguments; each refusal names the owner, the value and the remedy."""

from __future__ import annotations

import math
import operator
from numbers import Integral, Real
from typing import Any

from flodl.core import ScheduleError


def number(
    owner: str,
    name: str,
    value: Any,
    *,
    hint: str,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> None:
    """Refuse anything but a finite number inside the given bounds.

    >>> number("StepDecay", "gamma", -0.5, above=0, hint="0.1 divides by ten at each fall.")
    Traceback (most recent call last):
    flodl.core.errors.ScheduleError: StepDecay: gamma=-0.5, expected a finite number above 0. \
0.1 divides by ten at each fall.
    """
    bounds = (
        ("above", above, operator.gt),
        ("at least", at_least, operator.ge),
        ("below", below, operator.lt),
        ("at most", at_most, operator.le),
    )
    given = [(word, bound, holds) for word, bound, holds in bounds if bound is not None]
    usable = not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    if usable and all(holds(value, bound) for _, bound, holds in given):
        return
    limits = " and ".join(f"{word} {bound:g}" for word, bound, _ in given)
    expected = f"a finite number {limits}".rstrip()
    raise ScheduleError(f"{owner}: {name}={value!r}, expected {expected}. {hint}")


def whole(owner: str, name: str, value: Any, *, at_least: int, hint: str) -> None:
    """Refuse anything but a whole number from `at_least` up."""
    if not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= at_least:
        return
    raise ScheduleError(f"{owner}: {name}={value!r}, expected a whole number of at least {at_least}. {hint}")


def step_index(owner: object, step: Any) -> int:
    """Give `step` as an int, or refuse it in the name of the schedule that was asked."""
    hint = "Steps count optimizer updates from 0, the first update."
    whole(type(owner).__name__, "step", step, at_least=0, hint=hint)
    return int(step)
