"""What a step function uses from outside of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch import nn


def outside_values(step_fn: Callable[..., Any]) -> dict[str, Any]:
    """Return the global and captured variables of a step function, and the attributes of its object."""
    function = inspect.unwrap(function_of(step_fn))
    owner = getattr(step_fn, "__self__", None)
    found = dict(vars(owner)) if owner is not None and hasattr(owner, "__dict__") else {}
    if isinstance(owner, nn.Module):
        found |= dict(owner.named_children())
    if isinstance(function, FunctionType):
        variables = inspect.getclosurevars(function)
        found |= {**variables.globals, **variables.nonlocals}
    return found


def function_of(step_fn: Callable[..., Any]) -> Any:
    """Return the function behind a method or a partial."""
    while isinstance(step_fn, functools.partial):
        step_fn = step_fn.func
    return getattr(step_fn, "__func__", step_fn)
