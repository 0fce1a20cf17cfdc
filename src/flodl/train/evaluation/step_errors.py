"""A step function and a batch that do not fit: said in words, and only where the call itself fails."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from flodl.core import StepError


def refuse_misfit(step_fn: Callable[..., Any], arguments: tuple[Any, ...], error: TypeError) -> None:
    """After a TypeError, refuse a step function that cannot be called with such a batch at all.

    A TypeError from within a function that fits is the user's own, and left alone.
    """
    if not arguments:
        raise StepError(
            "step() was given no batch. Write trainer.step(batch), or trainer.step(x, y)."
        ) from error
    try:
        signature = inspect.signature(step_fn)
    except (TypeError, ValueError):
        return
    # What tail='pad' gives beside the batch.
    extra = {"mask": None} if "mask" in signature.parameters else {}
    try:
        signature.bind(None, *arguments, **extra)
    except TypeError as misfit:
        name = getattr(step_fn, "__name__", type(step_fn).__name__)
        written = "step_fn" if name == "<lambda>" else name
        raise StepError(
            f"the step function {name}{signature} is called with the model and {_parts(arguments)}: "
            f"{misfit}. Write def {written}(model, {_wanted(arguments)}), or give data of as many parts as "
            "it takes."
        ) from error


def _parts(arguments: tuple[Any, ...]) -> str:
    kinds = ", ".join(map(_described, arguments))
    return (
        f"the {len(arguments)} parts of a batch ({kinds})" if len(arguments) != 1 else f"one batch ({kinds})"
    )


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with {', '.join(map(repr, value))}"
    return f"a {type(value).__name__}"


def _wanted(arguments: tuple[Any, ...]) -> str:
    usual = {1: "batch", 2: "x, y"}
    return usual.get(len(arguments), ", ".join(f"part_{number}" for number in range(1, len(arguments) + 1)))
