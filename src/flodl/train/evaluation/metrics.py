"""Metric objects: `reset`, `update(predictions, targets)` and `compute`, such as those of torchmetrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from flodl.core import FlodlError, TrainError, log
from flodl.core.formats import a_type
from flodl.core.metric_modes import Mode
from flodl.engine import batch_text

from .class_metrics import ClassAccuracy, ClassF1
from .names import merge_values


def check_metrics(metrics: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the metric objects by name, or raise if one is not a metric."""
    if metrics is not None and not hasattr(metrics, "items"):  # a MetricCollection is not a dict
        raise TrainError(f"metrics is {a_type(metrics)}. Name each metric: metrics={{'f1': …}}.")
    seen: dict[int, str] = {}
    for name, metric in (metrics or {}).items():
        if not isinstance(name, str):
            raise TrainError(
                f"metrics= has {a_type(metric)} under the name {name!r}, which is {a_type(name)}. Use a "
                "string: metrics={'f1': …}."
            )
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
        if (before := seen.setdefault(id(metric), name)) != name:
            raise TrainError(
                f"metrics= has the same {type(metric).__name__} under the names {before!r} and {name!r}, so "
                "every batch would be added to it twice. Create one for each name."
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


class Results:
    """The results of the metrics: their numbers by name, and tables of those that return several.

    A vector has a number for each class, under its label or index, and their mean. A matrix is a table only.
    The names in a mapping are appended to the name of its metric.

    >>> f1 = ClassF1(["cat", "dog"])
    >>> f1.update(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 1, 1, 1]))
    >>> results = Results({"f1": f1})
    >>> results.values
    {'f1': 1.0, 'f1_cat': 1.0, 'f1_dog': 1.0}
    >>> results.tables
    {'f1': {'labels': ['cat', 'dog'], 'values': [1.0, 1.0]}}
    """

    def __init__(self, metrics: Mapping[str, Any], compute: Callable[[Any], Any] | None = None) -> None:
        found = {name: _computed(name, one, compute) for name, one in metrics.items()}
        self.tables: dict[str, dict[str, Any]] = {}
        for name, value in found.items():
            if isinstance(value, Tensor) and _has_classes(value):
                self.tables[name] = {"labels": _labels(metrics[name], value), "values": value.tolist()}
        self.values = merge_values(
            *(_values_of(name, value, self.tables.get(name)) for name, value in found.items())
        )


def modes_of(metrics: Mapping[str, Any]) -> dict[str, Mode]:
    """Return the direction of the metrics that tell it: those of flodl, for each class, and of torchmetrics.

    >>> modes_of({"f1": ClassF1(["info", "loss"])})
    {'f1': 'max', 'f1_info': 'max', 'f1_loss': 'max'}
    """
    found: dict[str, Mode] = {}
    for name, metric in metrics.items():
        if isinstance(metric, ClassAccuracy | ClassF1):
            found |= dict.fromkeys((name, *(f"{name}_{label}" for label in metric.labels)), "max")
        elif isinstance(metric, Mapping | nn.ModuleDict):  # a MetricCollection
            found |= {f"{name}_{inner}": mode for inner, mode in modes_of(dict(metric.items())).items()}
        elif (is_higher_better := _is_higher_better(metric)) is not None:
            found[name] = "max" if is_higher_better else "min"
    return found


def _is_higher_better(metric: Any) -> bool | None:
    """Return what a metric of torchmetrics says about its direction; None if it does not know."""
    told = getattr(metric, "higher_is_better", None)
    return told if isinstance(told, bool) else None


def with_modes(
    tables: Mapping[str, Mapping[str, Any]], modes: Mapping[str, Mode]
) -> dict[str, dict[str, Any]]:
    """Return tables with the direction of their numbers, where it is known, for the record of a run."""
    return {
        name: {**table, "mode": modes[name]} if name in modes else dict(table)
        for name, table in tables.items()
    }


def components_of(tables: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the names of the numbers that are also in a table."""
    return {
        f"{name}_{label}"
        for name, table in tables.items()
        if not isinstance(table["values"][0], list)
        for label in table["labels"]
    }


def _computed(name: str, metric: Any, compute: Callable[[Any], Any] | None) -> Any:
    """Return the result of a metric; an error says which metric it is."""
    try:
        return compute(metric) if compute else metric.compute()
    except Exception as error:
        error.add_note(f"This error is from compute() of the metric {name!r} ({type(metric).__name__}).")
        raise


def _has_classes(value: Tensor) -> bool:
    """Return whether a result has a number for each class, or for each pair of classes."""
    return value.numel() > 1 and (value.ndim == 1 or (value.ndim == 2 and value.shape[0] == value.shape[1]))


def _labels(metric: Any, value: Tensor) -> list[str]:
    labels = getattr(metric, "labels", None)
    if isinstance(labels, list | tuple) and len(labels) == len(value):
        return [str(label) for label in labels]
    return [str(index) for index in range(len(value))]


def computed_or_nan(metric: Any) -> Any:
    """Return the result after one batch; NaN for a metric that may need more samples than that."""
    try:
        return metric.compute()
    except (ArithmeticError, ValueError, RuntimeError, LookupError) as error:
        log.debug("%s.compute() after one batch: %s", type(metric).__name__, error)
        return math.nan


def _values_of(name: str, value: Any, table: Mapping[str, Any] | None) -> tuple[str, dict[str, float]]:
    """Return the origin and the values of one metric, by the names that are reported."""
    parts = value if isinstance(value, Mapping) else {"": value}
    if table is not None:
        is_matrix = value.ndim == 2
        parts = {} if is_matrix else {"": value.double().nanmean(), **dict(zip(table["labels"], value))}
    found: dict[str, float] = {}
    for part, number in parts.items():
        if isinstance(number, Tensor) and number.numel() != 1:
            raise TrainError(
                f"the metric {name!r} returns a tensor of shape {tuple(number.shape)}. "
                "Use metrics that return a number, a vector with one for each class, or a square matrix."
            )
        found[name if part == "" else f"{name}_{part}"] = _as_float(name, number)
    return f"a value of the metric {name!r}", found


def _as_float(name: str, value: Any) -> float:
    try:
        if not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise TrainError(f"the metric {name!r} returns {value!r}. Its compute must return a number.")
