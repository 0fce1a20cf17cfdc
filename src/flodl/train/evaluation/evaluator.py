"""Metrics over a whole data set, as weighted sums that do not depend on the batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from flodl.core import TrainError, log
from flodl.core.rng_state import preserve_rng_state
from flodl.engine import Precision, ambiguous_samples, computing_in, leading_lengths, num_samples
from flodl.graph import without_carried_values

from ..batches.samples import with_num_samples
from .ema import AveragedWeights
from .modes import evaluation_mode
from .step_errors import check_signature

Outputs = Callable[..., tuple[Any, Any]]


def as_arguments(batch: Any) -> tuple[Any, ...]:
    """Return the arguments of a step function: the items of a tuple or list, or the batch itself."""
    return tuple(batch) if isinstance(batch, tuple | list) else (batch,)


def check_names(values: Iterable[str]) -> None:
    """Raise if a name is reserved for the history."""
    for name in values:
        if name in ("loss", "lr", "epoch") or str(name).startswith("eval_"):
            raise TrainError(
                f"the step function returns a value named {name!r}, which is reserved for the history. "
                "Choose a different name."
            )


def check_number(name: str, value: Tensor) -> None:
    """Raise if a named value is not a single number."""
    if value.numel() != 1:
        raise TrainError(
            f"the step function returns {name!r} with shape {tuple(value.shape)}. Return one number per name."
        )


def check_metrics(metrics: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the metric objects by name, or raise if one is not a metric."""
    if metrics is not None and not hasattr(metrics, "items"):  # a MetricCollection is not a dict
        raise TrainError(f"metrics is a {type(metrics).__name__}. Name each metric: metrics={{'f1': …}}.")
    for name, metric in (metrics or {}).items():
        if name == "loss":
            raise TrainError("a metric is named 'loss', which is reserved. Choose a different name.")
        missing = [method for method in ("reset", "update", "compute") if not hasattr(metric, method)]
        if missing:
            raise TrainError(
                f"the metric {name!r} has no method {missing[0]!r}. Use an object with reset, "
                "update(predictions, targets) and compute, such as those of torchmetrics. A value that is "
                "computed from one batch belongs in the step function: return loss, {name: value}."
            )
    return dict(metrics or {})


class WeightedSums:
    """The loss and named values, weighted by samples and summed on the device in double precision."""

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
        """Return the means as plain numbers; this waits for the device."""
        return {name: total.item() / self._weights[name] for name, total in self._sums.items()}


@dataclass(frozen=True)
class Evaluator:
    """Compute loss, named values and metrics over all batches, without side effects on training."""

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
                f"outputs={self.outputs!r}. Use a function of the model and the parts of a batch that "
                "returns predictions and targets."
            )

    def __call__(
        self, batches: Iterable[Any], *, before_batch: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """Evaluate, with the averaged weights if there are any; `before_batch` may raise to stop."""
        weights = nullcontext() if self.average is None else self.average.applied()
        with preserve_rng_state(self.device), weights:
            return self._evaluate(batches, before_batch)

    def _evaluate(self, batches: Iterable[Any], before_batch: Callable[[], None]) -> dict[str, float]:
        sums = WeightedSums()
        for metric in self.metrics.values():
            if callable(getattr(metric, "to", None)):
                metric.to(self.device)
            metric.reset()
        with evaluation_mode(self.model), without_carried_values(self.model):
            has_warned = False
            for batch, samples in with_num_samples(batches):
                before_batch()
                arguments = as_arguments(batch)
                if samples is None:
                    samples, lengths = num_samples(arguments), leading_lengths(arguments)
                    if len(lengths) > 1 and not has_warned:
                        log.warn("evaluation: %s", ambiguous_samples(lengths))
                        has_warned = True
                with computing_in(self.precision, self.device):
                    result = self._call_step_fn(arguments)
                    loss, values = result if isinstance(result, tuple) else (result, {})
                    check_names(values)
                    sums.add({"loss": loss, **values}, samples)
                    if self.metrics:
                        predictions, targets = (self.outputs or _pair)(self.model, *arguments)
                        for metric in self.metrics.values():
                            metric.update(predictions, targets)
        return {**sums.means(), **_computed(self.metrics)}

    def _call_step_fn(self, arguments: tuple[Any, ...]) -> Any:
        extra = {}
        if self.masked:
            # With tail='pad' the function ignores rows by a mask; here nothing is padded.
            extra["mask"] = torch.ones(num_samples(arguments), dtype=torch.bool, device=self.device)
        try:
            return self.step_fn(self.model, *arguments, **extra)
        except TypeError as error:
            check_signature(self.step_fn, arguments, error)
            raise
        except RuntimeError as error:
            if "does not require grad" in str(error):
                error.add_note(
                    "Evaluation runs without gradients. A step function that needs them, for example for a "
                    "gradient penalty, can enable them: with torch.enable_grad(): …"
                )
            raise


def _pair(model: nn.Module, *arguments: Any) -> tuple[Any, Any]:
    """Treat a batch as inputs and targets."""
    if len(arguments) != 2:
        raise TrainError(
            f"metrics need predictions and targets, and the batch has {len(arguments)} parts, not two. "
            "Define them: outputs=lambda model, batch: (model(batch['x']), batch['y'])."
        )
    return model(arguments[0]), arguments[1]


def _computed(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the results of the metrics; the names in a mapping are appended to the name of its metric."""
    found: dict[str, float] = {}
    for name, metric in metrics.items():
        value = metric.compute()
        parts = value if isinstance(value, Mapping) else {"": value}
        for part, number in parts.items():
            if isinstance(number, Tensor) and number.numel() != 1:
                raise TrainError(
                    f"the metric {name!r} returns a tensor of shape {tuple(number.shape)}. "
                    "Use metrics that return one number, for example with average='macro'."
                )
            found[f"{name}_{part}" if part else name] = _as_float(name, number)
    return found


def _as_float(name: str, value: Any) -> float:
    try:
        if not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise TrainError(f"the metric {name!r} returns {value!r}. Its compute must return a number.")
