"""Metrics as users pass them (numbers, tensors, a graph) and as they are recorded (plain floats)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from flodl.core.errors import MetricError
from flodl.core.formats import a_type, format_metric

_SCIENTIFIC_FROM = 1e6


@runtime_checkable
class HasMetrics(Protocol):
    """A graph, or another object that knows its latest metrics."""

    def latest_metrics(self) -> dict[str, float]:
        """Return the last closed value of every metric."""


Metrics = Mapping[str, Any] | HasMetrics | Iterable[tuple[str, Any]]


def as_numbers(metrics: Metrics) -> dict[str, float]:
    """Return every metric as a float; a tensor must have one element.

    >>> as_numbers({"loss": 1, "accuracy": 0.5})
    {'loss': 1.0, 'accuracy': 0.5}
    """
    return {name: _to_float(name, value) for name, value in as_pairs(metrics)}


def as_pairs(metrics: Metrics) -> list[tuple[str, Any]]:
    """Return the metrics as names and unconverted values; nothing is read from a device."""
    if not isinstance(metrics, Mapping) and isinstance(metrics, HasMetrics):
        metrics = metrics.latest_metrics()
    try:
        found = metrics.items() if isinstance(metrics, Mapping) else metrics
        pairs = list(found)
        invalid = [name for name, _ in pairs if not isinstance(name, str) or name == ""]
    except (TypeError, ValueError):
        raise MetricError(
            f"cannot read metrics from {a_type(metrics)}. "
            "Pass a dict such as {'loss': 0.5}, or a graph that recorded them."
        ) from None
    if "" in invalid:
        raise MetricError("a metric has an empty name. Give it a name, as in {'loss': 0.5}.")
    if invalid:
        raise MetricError(f"a metric is named {invalid[0]!r}. Use a string, as in {{'loss': 0.5}}.")
    return pairs


def detach_value(name: str, value: Any) -> Any:
    """Return a value that later steps cannot change; a tensor on a device is copied there, not read."""
    if type(value) is float:
        return value
    if getattr(value, "is_cpu", True):
        return _to_float(name, value)
    if value.numel() != 1 or value.is_complex():
        raise _not_a_number(name, value)
    return value.detach().clone()


def format_value(value: float) -> str:
    """Format a metric with its significant digits, however large it is.

    >>> [format_value(value) for value in (0.5, 123456.0, 1e30, float("inf"))]
    ['0.5000', '123456.00', '1.00e+30', 'inf']
    """
    return f"{value:.2e}" if _SCIENTIFIC_FROM <= abs(value) < math.inf else format_metric(value)


def _to_float(name: str, value: Any) -> float:
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise _not_a_number(name, value) from None


def _not_a_number(name: str, value: Any) -> MetricError:
    shape = getattr(value, "shape", None)
    what = f"a tensor of shape {tuple(shape)}" if shape is not None else f"{value!r:.60}"
    if value is None:
        advice = "Leave it out until it has a value."
    elif isinstance(value, str | bytes):
        advice = "Pass a single number. Texts belong in monitor.describe({name: text})."
    elif shape is None and not isinstance(value, Iterable):
        advice = "Pass a single number."
    else:
        advice = "Pass a single number, for example with .mean()."
    return MetricError(f"the metric {name!r} got {what}. {advice}")
