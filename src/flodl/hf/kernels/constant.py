"""Functions whose result the compiler may take for a constant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def constant(function: Function) -> Function:
    """Mark a function whose result does not change, as `torch.compiler.assume_constant_result` does.

    That imports the compiler, which takes longer than loading a model.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
