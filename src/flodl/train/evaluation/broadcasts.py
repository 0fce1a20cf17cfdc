"""Metrics that broadcast predictions [n, 1, …] and targets [n, …], or the other way round, to [n, n, …]."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from flodl.core import log

from .metrics import Results, computed_or_nan

Shape = tuple[int, ...]


def broadcast_metrics(metrics: Mapping[str, Any], predictions: Any, targets: Any) -> Iterator[str]:
    """Yield a warning for each metric whose value changes if the extra dimension is removed.

    The metrics are reset and updated. One that removes the dimension itself has the same value, and one that
    needs it raises.
    """
    if not isinstance(predictions, Tensor) or not isinstance(targets, Tensor):
        return
    shapes = [tuple(one.shape) for one in (predictions, targets)]
    if _is_column(shapes[0], shapes[1]):
        remedy = "(model(x).squeeze(1), y)"
    elif _is_column(shapes[1], shapes[0]):
        remedy = "(model(x), y.squeeze(1))"
    else:
        return
    rows = _unlike_other_dimensions(min(shapes, key=len))
    pair = predictions[:rows], targets[:rows]
    fitting = tuple(one.squeeze(1) if len(one.shape) == max(map(len, shapes)) else one for one in pair)
    for name, metric in metrics.items():
        try:
            is_same = _agree(_values(name, metric, pair), _values(name, metric, fitting))
        except Exception as error:
            log.debug("the shapes for the metric %r: %s: %s", name, type(error).__name__, error)
            continue
        if not is_same:
            told, wanted = (str([*shape]) for shape in shapes)
            yield (
                f"the metric {name!r} ({type(metric).__name__}) gets predictions {told} and targets {wanted}"
                ", and its value changes if they have the same shape: it compares each prediction with all "
                f"targets. Remove the extra dimension: Trainer(…, outputs=lambda model, x, y: {remedy})."
            )


def _is_column(shape: Shape, other: Shape) -> bool:
    """Return whether the first shape has one more dimension, after the samples.

    >>> _is_column((4, 1), (4,)), _is_column((4, 1, 8, 8), (4, 8, 8)), _is_column((4, 3), (4,))
    (True, True, False)
    """
    return len(other) > 0 and shape == (other[0], 1, *other[1:])


def _unlike_other_dimensions(shape: Shape) -> int:
    """Return the largest number of samples that no other dimension has, so that they cannot broadcast.

    >>> _unlike_other_dimensions((8,)), _unlike_other_dimensions((8, 8, 7))
    (8, 6)
    """
    return max(rows for rows in range(shape[0] + 1) if rows not in shape[1:])


def _values(name: str, metric: Any, pair: tuple[Any, ...]) -> dict[str, float]:
    metric.reset()
    metric.update(*pair)
    return Results({name: metric}, computed_or_nan).values


def _agree(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Return whether no value differs by more than rounding; NaN says nothing."""
    return all(
        math.isclose(value, other[name], rel_tol=1e-3, abs_tol=1e-6)
        for name, value in one.items()
        if name in other and not math.isnan(value) and not math.isnan(other[name])
    )
