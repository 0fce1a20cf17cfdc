"""Metrics of each class whose names are those of the model, in another order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from flodl.core import TrainError

from ..evaluation.class_metrics import ConfusionMatrix
from ..saving.changes.label_names import label_names_of, listed_names


def check_class_names(metrics: Mapping[str, Any], model: nn.Module) -> None:
    """Raise if a metric has the labels of the model in another order.

    The names '0', '1', … are those of a metric that was given the number of classes.
    """
    own = label_names_of(model) or []
    for name, metric in metrics.items():
        if not isinstance(metric, ConfusionMatrix):
            continue
        given, kind = metric.labels, type(metric).__name__
        is_numbered = given == [str(index) for index in range(len(given))]
        if given == own or is_numbered or sorted(given) != sorted(own):
            continue
        raise TrainError(
            f"the metric {name!r} is {kind}({listed_names(given)}), and the model has the same labels in "
            f"another order, {listed_names(own)}: classes would get the wrong names. Write "
            f"{kind}(model.config.labels)."
        )
