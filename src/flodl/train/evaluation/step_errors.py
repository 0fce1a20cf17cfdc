"""Errors for a step function whose signature does not match the batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from flodl.core import StepError
from flodl.core.formats import a_type
from flodl.engine.mistakes.step_function import model_not_first


def check_signature(
    step_fn: Callable[..., Any], arguments: tuple[Any, ...], error: TypeError, *, of_data: str = ""
) -> None:
    """After a TypeError, raise StepError if the step function cannot be called with such a batch.

    Otherwise the TypeError comes from the code of the user, and this returns. The batch is one `of_data`.
    """
    if not arguments:
        raise StepError(
            "step() was called without a batch. Write trainer.step(batch), or trainer.step(x, y)."
        ) from error
    try:
        signature = inspect.signature(step_fn)
    except (TypeError, ValueError):
        return
    # tail='pad' passes a mask in addition to the batch.
    extra = {"mask": None} if "mask" in signature.parameters else {}
    try:
        signature.bind(None, *arguments, **extra)
    except TypeError as mismatch:
        name = getattr(step_fn, "__name__", type(step_fn).__name__)
        suggested = "step_fn" if name == "<lambda>" else name
        raise StepError(
            f"the step function {name}{signature} is called with the model and {_parts(arguments, of_data)}: "
            f"{mismatch}. Write def {suggested}(model, {_parameters(arguments)}), or pass data with as "
            "many parts as it takes."
        ) from error
    if misplaced := model_not_first(step_fn, error):
        raise StepError(misplaced) from error


def calls_backward(error: BaseException) -> bool:
    """Return whether an error comes from a call of `backward`.

    >>> try:
    ...     torch.ones(()).backward()
    ... except RuntimeError as error:
    ...     calls_backward(error)
    True
    """
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code is Tensor.backward.__code__:
            return True
        if traceback.tb_frame.f_code is torch.autograd.backward.__code__:
            return True
        traceback = traceback.tb_next
    return False


def _parts(arguments: tuple[Any, ...], of_data: str) -> str:
    what = f"batch {of_data}".rstrip()
    kinds = ", ".join(map(_describe, arguments))
    return (
        f"the {len(arguments)} parts of a {what} ({kinds})"
        if len(arguments) != 1
        else f"one {what} ({kinds})"
    )


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"{a_type(value)} with {', '.join(map(repr, value))}"
    return f"{a_type(value)}"


def _parameters(arguments: tuple[Any, ...]) -> str:
    usual = {1: "batch", 2: "x, y"}
    return usual.get(len(arguments), ", ".join(f"part_{number}" for number in range(1, len(arguments) + 1)))
