"""Metrics that broadcast predictions [n, 1] and targets [n], or the other way round, to [n, n]."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from flodl.core import log

from .metrics import Results, computed_or_nan


def broadcast_metrics(metrics: Mapping[str, Any], predictions: Any, targets: Any) -> Iterator[str]:
    """Yield a warning for each metric whose value changes if the extra dimension is removed.

    The metrics are reset and updated. One that removes the dimension itself has the same value, and one that
    needs it raises.
    """
    pair = predictions, targets
    if not all(isinstance(one, Tensor) and one.is_floating_point() for one in pair):
        return
    shapes = [tuple(one.shape) for one in pair]
    if shapes[0] == (*shapes[1], 1) and len(shapes[1]) == 1:
        fitting, remedy = (predictions.squeeze(1), targets), "(model(x).squeeze(1), y)"
    elif shapes[1] == (*shapes[0], 1) and len(shapes[0]) == 1:
        fitting, remedy = (predictions, targets.squeeze(1)), "(model(x), y.squeeze(1))"
    else:
        return
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


def _values(name: str, metric: Any, pair: tuple[Any, Any]) -> dict[str, float]:
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
