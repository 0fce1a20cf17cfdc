"""Metrics as they are given (numbers, tensors, a graph) and as they are kept (plain floats)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from flodl.core.errors import MetricError


@runtime_checkable
class HasMetrics(Protocol):
    """A graph, or anything else that knows its latest metrics."""

    def latest_metrics(self) -> dict[str, float]:
        """Give the last closed value of every metric."""


Given = Mapping[str, Any] | HasMetrics | Iterable[tuple[str, Any]]


def as_numbers(metrics: Given) -> dict[str, float]:
    """Read every metric as a float; a tensor must have one element.

    >>> as_numbers({"loss": 1, "accuracy": 0.5})
    {'loss': 1.0, 'accuracy': 0.5}
    """
    return {name: _number(name, value) for name, value in as_pairs(metrics)}


def as_pairs(metrics: Given) -> list[tuple[str, Any]]:
    """Give the metrics as names and values, as they are; nothing is read from a device."""
    if not isinstance(metrics, Mapping) and isinstance(metrics, HasMetrics):
        metrics = metrics.latest_metrics()
    try:
        pairs = metrics.items() if isinstance(metrics, Mapping) else metrics
        return [(str(name), value) for name, value in pairs]
    except (TypeError, ValueError):
        raise MetricError(
            f"metrics are given as {type(metrics).__name__}. "
            "Give a dict such as {'loss': 0.5}, or a graph that recorded them."
        ) from None


def _number(name: str, value: Any) -> float:
    try:
        return _as_float(value)
    except (TypeError, ValueError, RuntimeError):
        shape = getattr(value, "shape", None)
        what = f"a tensor of shape {tuple(shape)}" if shape is not None else repr(value)
        raise MetricError(
            f"the metric {name!r} got {what}. Give one number, for example with .mean()."
        ) from None


def held(value: Any) -> Any:
    """Keep a value as it is now; one on a device is copied there, since the next step may write over it."""
    if type(value) is float:
        return value
    if getattr(value, "is_cpu", True):
        return _number_or_nan(value)
    return value.detach().clone()


def _number_or_nan(value: Any) -> float:
    try:
        return _as_float(value)
    except (TypeError, ValueError, RuntimeError):
        return math.nan  # a training does not stop for a metric within an epoch; `log` is strict


def _as_float(value: Any) -> float:
    return float(value.detach() if hasattr(value, "detach") else value)
