"""Metrics over a whole data set, exact whatever the batches: sums with weights, never means of means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from flodl.core import TrainError
from flodl.engine.batch import num_samples
from flodl.engine.precision import computing_in
from flodl.engine.settings import Precision

from .carried import carrying_nothing
from .modes import evaluating

Outputs = Callable[..., tuple[Any, Any]]


def as_arguments(batch: Any) -> tuple[Any, ...]:
    """Give a batch as the arguments of a step function: a tuple as it is, anything else as one."""
    return tuple(batch) if isinstance(batch, tuple | list) else (batch,)


def check_names(values: Iterable[str]) -> None:
    """Refuse names that a row of the history has for itself."""
    for name in values:
        if name in ("loss", "lr", "epoch") or str(name).startswith("eval_"):
            raise TrainError(
                f"the step function names a value {name!r}, which the history of a run has for itself. "
                "Choose another name."
            )


class WeightedSums:
    """The loss and named values, weighed by samples and added up on the device in double precision."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._weights: dict[str, int] = {}

    def add(self, values: Mapping[str, Any], weight: int) -> None:
        """Add the values of one batch."""
        for name, value in values.items():
            number = torch.as_tensor(value).detach().double()
            if number.numel() != 1:
                raise TrainError(
                    f"the step function gives {name!r} of shape {tuple(number.shape)}. "
                    "Give one number for each name."
                )
            self._sums[name] = self._sums.get(name, 0) + number.reshape(()) * weight
            self._weights[name] = self._weights.get(name, 0) + weight

    def means(self) -> dict[str, float]:
        """Give the means as plain numbers; this waits for the device."""
        return {name: total.item() / self._weights[name] for name, total in self._sums.items()}


def evaluate(
    model: nn.Module,
    batches: Iterable[Any],
    step_fn: Callable[..., Any],
    *,
    device: torch.device,
    precision: Precision,
    metrics: Mapping[str, Any],
    outputs: Outputs | None,
    between: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Give the loss, what the step function names, and metric objects, over all batches."""
    sums = WeightedSums()
    for metric in metrics.values():
        if callable(getattr(metric, "to", None)):
            metric.to(device)
        metric.reset()
    with evaluating(model), carrying_nothing(model):
        for batch in batches:
            between()
            arguments = as_arguments(batch)
            with computing_in(precision, device):
                given = step_fn(model, *arguments)
                loss, values = given if isinstance(given, tuple) else (given, {})
                check_names(values)
                sums.add({"loss": loss, **values}, num_samples(arguments))
                if metrics:
                    predictions, targets = (outputs or _pair)(model, *arguments)
                    for metric in metrics.values():
                        metric.update(predictions, targets)
    return {**sums.means(), **_computed(metrics)}


def _pair(model: nn.Module, *arguments: Any) -> tuple[Any, Any]:
    """Read a batch as inputs and targets, as most are."""
    if len(arguments) != 2:
        raise TrainError(
            f"metrics need predictions and targets, and the batch has {len(arguments)} parts, not two. "
            "Say how they come about: outputs=lambda model, batch: (model(batch['x']), batch['y'])."
        )
    return model(arguments[0]), arguments[1]


def _computed(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Give what the metric objects came to; one that gives a table has its names behind its own."""
    found: dict[str, float] = {}
    for name, metric in metrics.items():
        value = metric.compute()
        parts = value if isinstance(value, Mapping) else {"": value}
        for part, number in parts.items():
            if isinstance(number, Tensor) and number.numel() != 1:
                raise TrainError(
                    f"the metric {name!r} gives a tensor of shape {tuple(number.shape)}. "
                    "Give metrics that come to one number, for example with average='macro'."
                )
            found[f"{name}_{part}" if part else name] = float(number)
    return found
