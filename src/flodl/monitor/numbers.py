"""Metrics as they are given (numbers, tensors, a graph) and as they are kept (plain floats)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from flodl.core.errors import MetricError
from flodl.core.formats import format_metric

_LARGE = 1e6


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
        found = metrics.items() if isinstance(metrics, Mapping) else metrics
        pairs = list(found)
        nameless = [name for name, _ in pairs if not isinstance(name, str) or name == ""]
    except (TypeError, ValueError):
        raise MetricError(
            f"metrics are given as {type(metrics).__name__}. "
            "Give a dict such as {'loss': 0.5}, or a graph that recorded them."
        ) from None
    if "" in nameless:
        raise MetricError("a metric has an empty name. Name it, as in {'loss': 0.5}.")
    if nameless:
        raise MetricError(f"a metric is named {nameless[0]!r}. Give a text, as in {{'loss': 0.5}}.")
    return pairs


def held(name: str, value: Any) -> Any:
    """Keep a value as it is now; one on a device is copied there, since the next step may write over it."""
    if type(value) is float:
        return value
    if getattr(value, "is_cpu", True):
        return _number(name, value)
    if value.numel() != 1 or value.is_complex():
        raise _not_a_number(name, value)
    return value.detach().clone()


def shown(value: float) -> str:
    """Show a metric with the digits that carry meaning, however large it is.

    >>> [shown(value) for value in (0.5, 123456.0, 1e30, float("inf"))]
    ['0.5000', '123456.00', '1.00e+30', 'inf']
    """
    return f"{value:.2e}" if _LARGE <= abs(value) < math.inf else format_metric(value)


def _number(name: str, value: Any) -> float:
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise _not_a_number(name, value) from None


def _not_a_number(name: str, value: Any) -> MetricError:
    shape = getattr(value, "shape", None)
    what = f"a tensor of shape {tuple(shape)}" if shape is not None else repr(value)
    return MetricError(f"the metric {name!r} got {what}. Give one number, for example with .mean().")
