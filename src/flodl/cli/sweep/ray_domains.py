"""The dimensions of a sweep as domains of Ray Tune."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .space import Choices, Dimension


@dataclass(frozen=True)
class Axis:
    """A domain of Ray Tune, and the conversion between its numbers and the values of a run."""

    domain: Any
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def axis_of(dimension: Dimension, tune: Any, *, as_fraction: bool) -> Axis:
    """Return the axis of a dimension. `as_fraction` makes every range 0 to 1, on its own scale."""
    if isinstance(dimension, Choices):
        # By position: 1, 1.0 and True are different settings, but equal in Python.
        known = [repr(value) for value in dimension.values]
        return Axis(
            tune.choice(list(range(len(known)))),
            encode=lambda value: known.index(repr(value)),
            decode=lambda position: dimension.values[int(position)],
        )
    if as_fraction:
        return Axis(
            tune.uniform(0.0, 1.0), dimension.fraction_of, lambda fraction: dimension.at(float(fraction))
        )
    if dimension.is_integer:
        make, end = tune.lograndint if dimension.log else tune.randint, dimension.high + 1  # not included
        return Axis(make(dimension.low, end), int, dimension.rounded)
    make = tune.loguniform if dimension.log else tune.uniform
    return Axis(make(float(dimension.low), float(dimension.high)), float, dimension.rounded)
