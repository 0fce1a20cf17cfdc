"""Metrics over a whole dataset, as weighted sums that do not depend on the batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flodl.core import StepError, TrainError, log
from flodl.core.metric_modes import Mode
from flodl.core.rng_state import preserve_rng_state
from flodl.engine import (
    Precision,
    ambiguous_samples,
    computing_in,
    empty_batch,
    explained,
    leading_lengths,
    num_samples,
    outcome_of,
    watch_broadcasts,
)
from flodl.graph import without_carried_values, without_records

from ..batches.samples import Batches
from ..checks.class_names import check_class_names
from .ema import AveragedWeights
from .metrics import Results, computed_or_nan, modes_of, reset_metrics, update_metrics
from .model_calls import ModelCall, record_calls
from .modes import check_still_evaluating, evaluation_mode
from .names import check_metric_names, check_names, check_number, merge_values
from .outputs import OF_DATA, Outputs, predict, warning_about_classes, warning_about_inputs
from .step_errors import calls_backward, check_signature


def as_arguments(batch: Any) -> tuple[Any, ...]:
    """Return the arguments of a step function: the items of a tuple or list, or the batch itself."""
    return tuple(batch) if isinstance(batch, tuple | list) else (batch,)


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
    # The results of the last evaluation that have several numbers: of each class, or a matrix.
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    # The warnings about batches that were logged once.
    reported: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.outputs is not None and not callable(self.outputs):
            raise TrainError(
                f"outputs={self.outputs!r}. Use a function of the model and the parts of a batch that "
                "returns predictions and targets."
            )
        check_metric_names(self.metrics)
        check_class_names(self.metrics, self.model)
        fitting = getattr(self.step_fn, "metric_outputs", None)
        if self.metrics and self.outputs is None and isinstance(fitting, str):
            raise TrainError(
                "metrics need predictions and targets, and there is no function that returns them. Pass "
                f"outputs={fitting} with metrics=…."
            )

    @property
    def modes(self) -> dict[str, Mode]:
        """Whether lower or higher is better, for the metrics of the evaluation whose objects tell it."""
        return {
            f"{prefix}{name}": mode
            for prefix in ("eval_", "eval_ema_")
            for name, mode in modes_of(self.metrics).items()
        }

    def __call__(
        self, read: Callable[[], Batches], *, before_batch: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """Evaluate the weights and, if there is one, their average; `before_batch` may raise to stop.

        `read` returns the batches from the start. It is called once for each of the two, because a model
        may carry values from batch to batch. The values of the average have the prefix "ema_".
        """
        with preserve_rng_state(self.device):
            values, tables = self._evaluate(read(), before_batch)
        self.tables.clear()
        self.tables.update(tables)
        if self.average is None:
            return values
        with preserve_rng_state(self.device), self.average.applied():
            averaged, tables = self._evaluate(read(), before_batch, warns=False)
        self.tables.update({f"ema_{name}": table for name, table in tables.items()})
        return merge_values(
            ("a value of the evaluation", values),
            ("a value of the averaged weights (ema)", {f"ema_{name}": v for name, v in averaged.items()}),
        )

    def names_of(
        self,
        batch: Any,
        samples: int | None,
        *,
        on_outputs: Callable[[Any, Any], None],
        on_broadcasts: Callable[[list[str]], None],
        on_warning: Callable[[str], object],
    ) -> tuple[list[str], list[str]]:
        """Evaluate one batch, and return the names of the values and of the matrices that there are.

        `on_outputs` receives the predictions and targets for the metrics, `on_broadcasts` where the step
        function combines [n, 1] and [n], `on_warning` that the metrics get something else than the loss.
        """
        found, tables = self._evaluate(
            [(batch, samples)],
            lambda: None,
            warns=False,
            compute=computed_or_nan,
            on_outputs=on_outputs,
            on_broadcasts=on_broadcasts,
            on_warning=on_warning,
        )
        names, matrices = list(found), [name for name in tables if name not in found]
        if self.average is None:
            return names, matrices
        return [*names, *(f"ema_{one}" for one in names)], [*matrices, *(f"ema_{one}" for one in matrices)]

    def values_of(self, batch: Any) -> dict[str, float]:
        """Return the loss and the values of one batch; use it inside `sandbox`, random numbers are drawn."""
        return self._evaluate([(batch, None)], lambda: None, warns=False)[0]

    def named_values_of(self, batch: Any) -> dict[str, Tensor]:
        """Return the named values of one batch as the step function returns them; use it inside `sandbox`."""
        model, precision = self.model, computing_in(self.precision, self.device)
        with evaluation_mode(model), without_carried_values(model), without_records(model), precision:
            values = self._call_step_fn(as_arguments(batch))[1]
        return {name: torch.as_tensor(value) for name, value in values.items()}

    def _evaluate(
        self,
        batches: Batches,
        before_batch: Callable[[], None],
        *,
        warns: bool = True,
        compute: Callable[[Any], Any] | None = None,
        on_outputs: Callable[[Any, Any], None] | None = None,
        on_broadcasts: Callable[[list[str]], None] | None = None,
        on_warning: Callable[[str], object] | None = None,
    ) -> tuple[dict[str, float], dict[str, dict[str, Any]]]:
        sums = WeightedSums()
        reset_metrics(self.metrics, self.device)
        note = ""
        # The first batch tells whether the step function prepares what the metrics get.
        is_compared = not self.metrics or self.outputs is not None
        calls, used = list[ModelCall](), list[tuple[Tensor, int]]()
        with evaluation_mode(self.model), without_carried_values(self.model), without_records(self.model):
            for batch, samples in batches:
                before_batch()
                if note:  # of an earlier batch: the number of samples of a single one has no effect
                    log.msg("  evaluation: %s", note)
                    self.reported.add("samples")
                    note = ""
                arguments = as_arguments(batch)
                if samples is None:
                    samples, lengths = num_samples(arguments), leading_lengths(arguments)
                    if len(lengths) > 1 and warns and "samples" not in self.reported:
                        note = ambiguous_samples(lengths)
                with computing_in(self.precision, self.device), ExitStack() as watching:
                    if not is_compared:
                        calls = watching.enter_context(record_calls(self.model))
                    if on_broadcasts is not None:
                        watch = watch_broadcasts(self.model, arguments, on_targets=_adding_to(used))
                        broadcasts = watching.enter_context(watch)
                    loss, values = self._call_step_fn(arguments)
                    watching.close()
                    if on_broadcasts is not None:
                        on_broadcasts(broadcasts)
                    if self.model.training:
                        check_still_evaluating(self.model)
                    check_names(values, metrics=self.metrics)
                    if samples == 0 and warns:
                        warns = not self._warn_of_empty(arguments, loss)
                    sums.add({"loss": loss, **values}, samples)
                    if self.metrics:
                        predictions, targets = predict(
                            self.outputs, self.model, self.step_fn, arguments, calls
                        )
                        if not is_compared:
                            is_compared = True
                            self._warn_of_other_inputs(arguments, calls, used, predictions, on_warning)
                            calls.clear()
                        update_metrics(self.metrics, predictions, targets)
                        if on_outputs is not None:
                            on_outputs(predictions, targets)
        results = Results(self.metrics, compute)
        values = merge_values(
            ("a value of the step function", sums.means()), ("a metric of metrics=", results.values)
        )
        return values, results.tables

    def _warn_of_other_inputs(
        self,
        arguments: tuple[Any, ...],
        calls: Sequence[ModelCall],
        used: Sequence[tuple[Tensor, int]],
        predictions: Any,
        on_warning: Callable[[str], object] | None,
    ) -> None:
        """Warn once if the metrics do not get what the loss of the step function gets."""
        for warning in (
            warning_about_inputs(self.step_fn, arguments, calls, predictions),
            warning_about_classes(self.step_fn, arguments, used),
        ):
            if warning and warning not in self.reported:
                self.reported.add(warning)
                if on_warning is None:
                    log.warn("evaluation: %s", warning)
                else:
                    on_warning(warning)

    def _warn_of_empty(self, arguments: tuple[Any, ...], loss: Any) -> bool:
        """Warn about a batch without samples that makes the mean loss NaN; return whether it does."""
        told = empty_batch(self.step_fn, arguments)
        if not told or bool(torch.as_tensor(loss).isfinite()):
            return False
        log.warn("evaluation: %s, so eval_loss is not a number. Leave out empty batches.", told)
        return True

    def _call_step_fn(self, arguments: tuple[Any, ...]) -> tuple[Any, Mapping[str, Any]]:
        """Return the loss and the named values of a batch."""
        extra = {}
        if self.masked:
            # With tail='pad' the function ignores rows by a mask; here nothing is padded.
            extra["mask"] = torch.ones(num_samples(arguments), dtype=torch.bool, device=self.device)
        try:
            return _loss_and_values(self.step_fn(self.model, *arguments, **extra))
        except Exception as error:
            if isinstance(error, RuntimeError) and "does not require grad" in str(error):
                if calls_backward(error):
                    raise StepError(
                        "the step function calls backward() itself: remove that call and just return the "
                        "loss. If it computes gradients on purpose, for example of the inputs, enable them "
                        "for the evaluation: with torch.enable_grad(): …"
                    ) from error
                error.add_note(
                    "Evaluation runs without gradients. A step function that needs them, for example for a "
                    "gradient penalty, can enable them: with torch.enable_grad(): …"
                )
            if isinstance(error, TypeError):
                check_signature(self.step_fn, arguments, error, of_data=OF_DATA)
            if better := explained(error, self.step_fn, self.model, arguments, extra, of_data=OF_DATA):
                raise better from error
            raise


def _loss_and_values(result: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return what a step function returned, or raise the error that a training step raises for it."""
    loss, values = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
    # An evaluation needs no gradient, so a plain number is a loss, too.
    checked = torch.as_tensor(loss) if isinstance(loss, int | float | np.number) else loss
    outcome_of((checked, values), needs_gradient=False)
    return loss, values


def _adding_to(used: list[tuple[Tensor, int]]) -> Callable[[Tensor, int], None]:
    return lambda targets, ignored: used.append((targets, ignored))
