"""Validating the arguments of schedules and clipping functions."""

from __future__ import annotations

import inspect
import math
import operator
from numbers import Integral, Real
from typing import Any, TypeVar

from flodl.core import ScheduleError
from flodl.core.usage.calls import ScheduleCallError, explain_creation, explain_methods

C = TypeVar("C", bound=type)

# The arguments of schedules, and what others call them.
_OTHER_NAMES = {
    "base": ("lr", "learning_rate", "base_lr", "initial_lr", "max_lr", "start"),
    "min": ("eta_min", "min_lr", "end", "lr_min", "base_lr"),
    "max": ("lr", "learning_rate", "max_lr", "lr_max"),
    "total": ("T_max", "total_steps", "num_steps", "steps", "max_steps", "total_iters", "epochs"),
    "warm": ("warmup", "warmup_steps", "num_warmup_steps", "steps"),
    "inner": ("schedule", "scheduler", "after"),
    "warmup_frac": ("pct_start", "warmup", "warmup_ratio"),
    "step_size": ("every", "period", "interval"),
    "half_cycle": ("step_size", "step_size_up"),
}


# Recorded and compiled steps contain it.
_TRACED = ("lr_tensor",)


def explained(schedule: C) -> C:
    """Decorate a schedule: the wrong arguments raise an error with the right ones."""
    own = [*inspect.signature(schedule).parameters]
    elsewhere: dict[str, str] = {}
    for name in own:
        for other in _OTHER_NAMES.get(name, ()):
            elsewhere.setdefault(other, f"Write {name}=….")
    example = f"Write {schedule.__name__}({', '.join(own)})."
    explain_methods(ScheduleCallError, without=_TRACED)(schedule)
    return explain_creation(ScheduleCallError, elsewhere=elsewhere, example=example)(schedule)


def check_number(
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
    """Raise unless `value` is a finite number within the given bounds.

    >>> check_number("StepDecay", "gamma", -0.5, above=0, hint="0.1 divides by ten at each decay.")
    Traceback (most recent call last):
    flodl.core.errors.ScheduleError: StepDecay: gamma=-0.5, expected a finite number above 0. \
0.1 divides by ten at each decay.
    """
    bounds = (
        ("above", above, operator.gt),
        ("at least", at_least, operator.ge),
        ("below", below, operator.lt),
        ("at most", at_most, operator.le),
    )
    limits = [(word, bound, holds) for word, bound, holds in bounds if bound is not None]
    usable = not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    if usable and all(holds(value, bound) for _, bound, holds in limits):
        return
    range_text = " and ".join(f"{word} {bound:g}" for word, bound, _ in limits)
    expected = f"a finite number {range_text}".rstrip()
    raise ScheduleError(f"{owner}: {name}={value!r}, expected {expected}. {hint}")


def check_integer(owner: str, name: str, value: Any, *, at_least: int, hint: str) -> None:
    """Raise unless `value` is an integer of at least `at_least`."""
    if not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= at_least:
        return
    raise ScheduleError(f"{owner}: {name}={value!r}, expected an integer of at least {at_least}. {hint}")


def step_index(owner: object, step: Any) -> int:
    """Return `step` as an int, or raise an error that names the schedule."""
    hint = "Steps count optimizer updates from 0, the first update."
    check_integer(type(owner).__name__, "step", step, at_least=0, hint=hint)
    return int(step)
