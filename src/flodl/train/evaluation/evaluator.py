"""Metrics over a whole data set, exact whatever the batches: sums with weights, never means of means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from flodl.core import TrainError, log
from flodl.core.rng_state import preserve_rng_state
from flodl.engine.batch.samples import ambiguous_samples, leading_lengths, num_samples
from flodl.engine.program.precision import computing_in
from flodl.engine.settings import Precision
from flodl.graph import without_carried_values

from ..batches.samples import counted
from .ema import AveragedWeights
from .modes import evaluating
from .step_errors import refuse_misfit

Outputs = Callable[..., tuple[Any, Any]]


def as_arguments(batch: Any) -> tuple[Any, ...]:
    """Give a batch as the arguments of a step function: those of a tuple or a list, anything else as one."""
    return tuple(batch) if isinstance(batch, tuple | list) else (batch,)


def check_names(values: Iterable[str]) -> None:
    """Refuse names that a row of the history has for itself."""
    for name in values:
        if name in ("loss", "lr", "epoch") or str(name).startswith("eval_"):
            raise TrainError(
                f"the step function names a value {name!r}, which the history of a run has for itself. "
                "Choose another name."
            )


def check_number(name: str, value: Tensor) -> None:
    """Refuse a named value that is not one number."""
    if value.numel() != 1:
        raise TrainError(
            f"the step function gives {name!r} of shape {tuple(value.shape)}. Give one number for each name."
        )


def checked(metrics: Mapping[str, Any] | None) -> dict[str, Any]:
    """Give metric objects by name, or say what is none."""
    if metrics is not None and not hasattr(metrics, "items"):  # a MetricCollection has names, and is no dict
        raise TrainError(f"metrics is a {type(metrics).__name__}. Give each a name: metrics={{'f1': …}}.")
    for name, metric in (metrics or {}).items():
        if name == "loss":
            raise TrainError("a metric is called 'loss', as the loss itself is. Choose another name.")
        lacking = [method for method in ("reset", "update", "compute") if not hasattr(metric, method)]
        if lacking:
            raise TrainError(
                f"the metric {name!r} has no method {lacking[0]!r}. Give an object with reset, "
                "update(predictions, targets) and compute, such as those of torchmetrics. What a function of "
                "one batch can say belongs into the step function: return loss, {name: value}."
            )
    return dict(metrics or {})


class WeightedSums:
    """The loss and named values, weighed by samples and added up on the device in double precision."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._weights: dict[str, int] = {}

    def add(self, values: Mapping[str, Any], weight: int) -> None:
        """Add the values of one batch."""
        for name, value in values.items():
            number = torch.as_tensor(value).detach().double()
            check_number(name, number)
            self._sums[name] = self._sums.get(name, 0) + number.reshape(()) * weight
            self._weights[name] = self._weights.get(name, 0) + weight

    def means(self) -> dict[str, float]:
        """Give the means as plain numbers; this waits for the device."""
        return {name: total.item() / self._weights[name] for name, total in self._sums.items()}


@dataclass(frozen=True)
class Evaluator:
    """Give loss, named values and metric objects over all batches, and leave no trace."""

    model: nn.Module
    step_fn: Callable[..., Any]
    device: torch.device
    precision: Precision
    average: AveragedWeights | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    outputs: Outputs | None = None
    masked: bool = False

    def __post_init__(self) -> None:
        if self.outputs is not None and not callable(self.outputs):
            raise TrainError(
                f"outputs={self.outputs!r}. Give a function of the model and the parts of a batch that gives "
                "predictions and targets."
            )

    def __call__(
        self, batches: Iterable[Any], *, between: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """Evaluate with the averaged weights where there are any; `between` is called before every batch."""
        weights = nullcontext() if self.average is None else self.average.applied()
        with preserve_rng_state(self.device), weights:
            return self._found(batches, between)

    def _found(self, batches: Iterable[Any], between: Callable[[], None]) -> dict[str, float]:
        sums = WeightedSums()
        for metric in self.metrics.values():
            if callable(getattr(metric, "to", None)):
                metric.to(self.device)
            metric.reset()
        with evaluating(self.model), without_carried_values(self.model):
            said = False
            for batch, samples in counted(batches):
                between()
                arguments = as_arguments(batch)
                if samples is None:
                    samples, lengths = num_samples(arguments), leading_lengths(arguments)
                    if len(lengths) > 1 and not said:
                        log.warn("evaluation: %s", ambiguous_samples(lengths))
                        said = True
                with computing_in(self.precision, self.device):
                    given = self._given(arguments)
                    loss, values = given if isinstance(given, tuple) else (given, {})
                    check_names(values)
                    sums.add({"loss": loss, **values}, samples)
                    if self.metrics:
                        predictions, targets = (self.outputs or _pair)(self.model, *arguments)
                        for metric in self.metrics.values():
                            metric.update(predictions, targets)
        return {**sums.means(), **_computed(self.metrics)}

    def _given(self, arguments: tuple[Any, ...]) -> Any:
        extra = {}
        if self.masked:
            # With tail='pad' the function leaves rows out by a mask; here nothing is padded.
            extra["mask"] = torch.ones(num_samples(arguments), dtype=torch.bool, device=self.device)
        try:
            return self.step_fn(self.model, *arguments, **extra)
        except TypeError as error:
            refuse_misfit(self.step_fn, arguments, error)
            raise
        except RuntimeError as error:
            if "does not require grad" in str(error):
                error.add_note(
                    "An evaluation runs without gradients. A step function that needs them, as for a penalty "
                    "on gradients, asks for them: with torch.enable_grad(): …"
                )
            raise


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
            found[f"{name}_{part}" if part else name] = _number(name, number)
    return found


def _number(name: str, given: Any) -> float:
    try:
        if not isinstance(given, str):
            return float(given)
    except (TypeError, ValueError):
        pass
    raise TrainError(f"the metric {name!r} gives {given!r}. Its compute must give a number.")
