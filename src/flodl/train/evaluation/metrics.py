"""Metric objects: `reset`, `update(predictions, targets)` and `compute`, such as those of torchmetrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from flodl.core import FlodlError, TrainError, log
from flodl.engine import batch_text

from .names import merge_values


def check_metrics(metrics: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the metric objects by name, or raise if one is not a metric."""
    if metrics is not None and not hasattr(metrics, "items"):  # a MetricCollection is not a dict
        raise TrainError(f"metrics is a {type(metrics).__name__}. Name each metric: metrics={{'f1': …}}.")
    for name, metric in (metrics or {}).items():
        if name == "loss":
            raise TrainError("a metric is named 'loss', which is reserved. Choose a different name.")
        if isinstance(metric, type):
            raise TrainError(
                f"the metric {name!r} is the class {metric.__name__}. Create one: {metric.__name__}(…)."
            )
        missing = [method for method in ("reset", "update", "compute") if not hasattr(metric, method)]
        if missing:
            raise TrainError(
                f"the metric {name!r} has no method {missing[0]!r}. Use an object with reset, "
                "update(predictions, targets) and compute, such as those of torchmetrics. A value that is "
                "computed from one batch belongs in the step function: return loss, {name: value}."
            )
    return dict(metrics or {})


def reset_metrics(metrics: Mapping[str, Any], device: torch.device) -> None:
    """Reset the metrics, and move those that can be moved to a device."""
    for metric in metrics.values():
        if callable(getattr(metric, "to", None)):
            metric.to(device)
        metric.reset()


def update_metrics(metrics: Mapping[str, Any], predictions: Any, targets: Any) -> None:
    """Add a batch to the metrics; a mismatch raises an error with the name of the metric and the shapes."""
    for name, metric in metrics.items():
        try:
            metric.update(predictions, targets)
        except (RuntimeError, ValueError, TypeError, LookupError) as error:
            if isinstance(error, FlodlError | torch.OutOfMemoryError):
                raise
            told = str(error).partition("\n")[0].rstrip(".")
            raise TrainError(
                f"the metric {name!r} ({type(metric).__name__}) cannot be updated with the predictions "
                f"{batch_text((predictions,))[1:-1]} and the targets {batch_text((targets,))[1:-1]}: "
                f"{type(error).__name__}: {told}. Check that it was created for this model (the number of "
                "classes, the labels), and that outputs= returns the predictions and targets that it takes."
            ) from error


def computed_values(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the results of the metrics; the names in a mapping are appended to the name of its metric."""
    return merge_values(*(_values_of(name, metric.compute()) for name, metric in metrics.items()))


def values_of_one_batch(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the results after one batch; NaN for a metric that may need more samples than that."""
    return merge_values(*(_values_of(name, _computed(metric)) for name, metric in metrics.items()))


def _computed(metric: Any) -> Any:
    try:
        return metric.compute()
    except (ArithmeticError, ValueError, RuntimeError, LookupError) as error:
        log.debug("%s.compute() after one batch: %s", type(metric).__name__, error)
        return math.nan


def _values_of(name: str, value: Any) -> tuple[str, dict[str, float]]:
    """Return the origin and the values of one metric, by the names that are reported."""
    parts = value if isinstance(value, Mapping) else {"": value}
    found: dict[str, float] = {}
    for part, number in parts.items():
        if isinstance(number, Tensor) and number.numel() != 1:
            raise TrainError(
                f"the metric {name!r} returns a tensor of shape {tuple(number.shape)}. "
                "Use metrics that return one number, for example with average='macro'."
            )
        found[f"{name}_{part}" if part else name] = _as_float(name, number)
    return f"a value of the metric {name!r}", found


def _as_float(name: str, value: Any) -> float:
    try:
        if not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise TrainError(f"the metric {name!r} returns {value!r}. Its compute must return a number.")
