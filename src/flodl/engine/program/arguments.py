"""Checks of the arguments of a `TrainStep`, before anything is changed."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from flodl.core import StepError
from flodl.core.formats import a_type
from flodl.optim.misspelled_options import misspelled_option
from flodl.optim.wrapped_optimizers import wrapper_text

from ..optimizer.prepare import is_custom
from ..settings import Precision, StepFunction, Tail


def check_arguments(model: object, optimizer: object, step_fn: object) -> None:
    """Raise if these cannot make a training step."""
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise StepError(f"the model is the class {model.__name__}. Create one: {model.__name__}(…).")
    if isinstance(optimizer, type) and issubclass(optimizer, Optimizer):
        kind = optimizer.__name__
        raise StepError(
            f"the optimizer is the class {kind}. Create one: torch.optim.{kind}(model.parameters(), lr=…)."
        )
    if not isinstance(model, nn.Module):
        # Such as a FlowBuilder.
        model_text = "builder.build()" if callable(getattr(model, "build", None)) else "model"
        raise StepError(f"the model is {a_type(model)}. Write TrainStep({model_text}, optimizer, step_fn).")
    if wrapper := wrapper_text(optimizer):
        raise StepError(wrapper)
    if not isinstance(optimizer, Optimizer):
        raise StepError(f"the optimizer is {a_type(optimizer)}. Write TrainStep(model, optimizer, step_fn).")
    if not callable(step_fn):
        raise StepError(f"the step function is {a_type(step_fn)}. Pass a function of the model.")
    if isinstance(optimizer, LBFGS):
        raise StepError(
            "LBFGS evaluates the model several times per update, which a TrainStep does not support. "
            "Use another optimizer, or call LBFGS in your own loop."
        )
    if misspelled := misspelled_option(optimizer):
        raise StepError(misspelled)
    if (name := _required_by_step(optimizer)) is not None:
        raise _requires_argument(optimizer, name)


def missing_closure(optimizer: Optimizer, error: Exception) -> StepError | None:
    """Return the error for an update that failed because an optional closure is required, or None.

    >>> class Ascending(torch.optim.SGD):
    ...     def step(self, closure=None):
    ...         assert closure is not None
    >>> optimizer = Ascending([nn.Parameter(torch.zeros(1))])
    >>> try:
    ...     optimizer.step()
    ... except AssertionError as error:
    ...     missing_closure(optimizer, RuntimeError("the closure is missing"))
    StepError("Ascending.step() requires 'closure': it evaluates the model itself during an update, ...
    """
    kind = type(optimizer)
    if not is_custom(optimizer) or "closure" not in inspect.signature(kind.step).parameters:
        return None
    lines = [frame.line or "" for frame in traceback.extract_tb(error.__traceback__) if frame.name == "step"]
    if not any("closure" in text for text in (str(error), *lines)):
        return None
    return _requires_argument(optimizer, "closure")


def _requires_argument(optimizer: Optimizer, name: str) -> StepError:
    return StepError(
        f"{type(optimizer).__name__}.step() requires {name!r}: it evaluates the model itself during an "
        "update, which a TrainStep does not support. Use another optimizer, or call it in your own loop."
    )


def check_dtypes(parameters: Iterable[Tensor], precision: Precision) -> None:
    """Raise if mixed precision would update weights that are in half precision already."""
    if precision == "fp16" and any(p.dtype is torch.float16 for p in parameters):
        raise StepError(
            "precision='fp16' with float16 parameters: mixed precision computes in float16 and keeps float32 "
            "weights, because small updates are lost in float16. Remove model.half()."
        )


def check_takes_mask(step_fn: StepFunction) -> None:
    """Raise if a step function has no `mask` parameter, which tail='pad' needs."""
    try:
        parameters = [*inspect.signature(step_fn).parameters.values()]
    except (TypeError, ValueError):
        parameters = []
    if not any(p.name == "mask" or p.kind is p.VAR_KEYWORD for p in parameters):
        raise StepError(
            "tail='pad' fills a ragged batch with rows that must not count, and the step function has no "
            "'mask' parameter to leave them out. Write step_fn(model, x, y, *, mask) and average over "
            "mask, or use tail='eager'."
        )


def check_tail_on_ranks(tail: Tail) -> None:
    """Raise if a rank might drop a batch while the others wait for its gradients."""
    if tail == "drop":
        raise StepError(
            "tail='drop' with reduce_gradients: a rank that drops its batch makes no update, and the others "
            "would wait for its gradients. Use tail='eager' or 'pad', and drop the last batch of all ranks "
            "where the data is divided."
        )


def _required_by_step(optimizer: Optimizer) -> str | None:
    """Return the name of an argument that the optimizer's step requires, or None."""
    try:
        # Of the class: torch's schedulers replace the method of the instance.
        parameters = [*inspect.signature(type(optimizer).step).parameters.values()][1:]
    except (TypeError, ValueError):
        return None
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return next((p.name for p in parameters if p.default is p.empty and p.kind not in optional), None)
