"""Metrics over a whole data set, exact whatever the batches: sums with weights, never means of means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from flodl.core import TrainError
from flodl.engine.batch import num_samples
from flodl.engine.precision import computing_in
from flodl.engine.settings import Precision


def as_arguments(batch: Any) -> tuple[Any, ...]:
    """Give a batch as the arguments of a step function: a tuple as it is, anything else as one."""
    return tuple(batch) if isinstance(batch, tuple | list) else (batch,)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch every module to evaluation, and each back to what it was."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in before:
            module.training = training


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
    precision: Precision,
    metrics: Mapping[str, Any],
    outputs: Callable[..., tuple[Any, Any]],
    between: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Give the loss, what the step function names, and metric objects, over all batches."""
    sums = WeightedSums()
    for metric in metrics.values():
        metric.reset()
    seen = False
    with evaluating(model):
        device = next(model.parameters()).device
        for batch in batches:
            between()
            arguments = as_arguments(batch)
            with computing_in(precision, device):
                given = step_fn(model, *arguments)
                loss, values = given if isinstance(given, tuple) else (given, {})
                sums.add({"loss": loss, **values}, num_samples(arguments))
                if metrics:
                    predictions, targets = outputs(model, *arguments)
                    for metric in metrics.values():
                        metric.update(predictions, targets)
            seen = True
    if not seen:
        raise TrainError("the evaluation data gave no batch. Give at least one sample.")
    computed = {name: float(metric.compute()) for name, metric in metrics.items()}
    return {**sums.means(), **computed}
