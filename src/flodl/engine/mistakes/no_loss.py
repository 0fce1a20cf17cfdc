"""Step functions that return None: without a return statement, or because the model has no loss."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from types import CodeType
from typing import Any

from torch import nn

from flodl.core.usage.attributes import misspelled

from ..batch.keywords import takes_names
from ..settings import StepFunction
from .batch_text import batch_text, keys_text
from .returned import returns_a_value
from .step_function import signature_text

_EXPECTED = "Return one scalar loss, or (loss, {name: value})."


def why_no_loss(step_fn: StepFunction, model: nn.Module, batch: tuple[Any, ...]) -> str:
    """Return the message for a step function that returned None.

    >>> print(why_no_loss(lambda model, x: None, nn.Linear(2, 1), ()))
    the step function <lambda>(model, x) at ... returned None in place of the loss. Return ...
    """
    own = takes_names(step_fn) or step_fn
    told = f"the step function {signature_text(own)} returned None in place of the loss. {_EXPECTED}"
    code = _code_of(own)
    if code is not None and not returns_a_value(code):
        return f"{told} It lacks a return statement with a value."
    if any(_is_of_transformers(module) for module in model.modules()):
        return f"{told} {_about_labels(batch)}"
    return f"{told} Either it did not reach its return statement, or what it returns is None."


def _about_labels(batch: tuple[Any, ...]) -> str:
    needed = "A transformers model has a loss only if it is called with labels"
    mapping = next((part for part in batch if isinstance(part, Mapping)), None)
    if mapping is None:
        return f"{needed}, as in model(x, labels=y).loss; the batch is {batch_text(batch)}."
    if "labels" in mapping:
        return f"{needed}: the batch has 'labels', so pass them to the model."
    similar = misspelled("labels", [key for key in mapping if isinstance(key, str)])
    renamed = f" Rename {similar!r} to 'labels'." if similar else " Add 'labels' to the data."
    return f"{needed}, and the batch has no 'labels': it has {keys_text(mapping)}.{renamed}"


def _is_of_transformers(module: nn.Module) -> bool:
    return any(kind.__module__.partition(".")[0] == "transformers" for kind in type(module).__mro__)


def _code_of(step_fn: Any) -> CodeType | None:
    """Return the code that a call of the step function runs, if it is written in Python."""
    while isinstance(step_fn, functools.partial):
        step_fn = step_fn.func
    if isinstance(step_fn, nn.Module):
        step_fn = step_fn.forward
    elif not inspect.isroutine(step_fn):
        step_fn = getattr(step_fn, "__call__", step_fn)  # noqa: B004
    return getattr(inspect.unwrap(step_fn), "__code__", None)
