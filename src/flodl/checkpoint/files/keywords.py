"""Calls with the wrong arguments, with what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from flodl.core.usage.calls import CheckpointCallError, explain_calls

P = ParamSpec("P")
T = TypeVar("T")

# What others call it.
_OF_FILES = {
    "map_location": "Leave it out: tensors are loaded onto the CPU.",
    "device": "Leave it out: tensors are loaded onto the CPU.",
    "weights_only": "Leave it out: only tensors are ever loaded.",
}
_OF_LOADING = {
    **_OF_FILES,
    "strict": "Pass the names or patterns that may differ: allow_missing=['head.*'], allow_unexpected=['*'].",
    "map_location": "Leave it out: values are copied to the device of each tensor of the model.",
    "device": "Leave it out: values are copied to the device of each tensor of the model.",
}
_EXAMPLES = {
    name: f"Write {name}('model.fdl', model.state_dict())." for name in ("load_checkpoint", "save_checkpoint")
}


def suggest_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that a call with the wrong arguments says what to write.

    >>> @suggest_keywords
    ... def load(path, *, allow_missing=()):
    ...     return path
    >>> load("model.fdl", alow_missing=["head.*"])
    Traceback (most recent call last):
    flodl.core.usage.calls.CheckpointCallError: load has no argument 'alow_missing'. Did you mean ...
    """
    example = _EXAMPLES.get(function.__qualname__, "")
    elsewhere = _OF_LOADING if function.__name__.startswith("load") else _OF_FILES
    return explain_calls(CheckpointCallError, elsewhere=elsewhere, example=example)(function)
