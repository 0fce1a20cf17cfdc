"""Keyword arguments that a function does not have, with a suggestion."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from flodl.core import CheckpointError
from flodl.core.paths import suggestion

P = ParamSpec("P")
T = TypeVar("T")

_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
# What others call it.
_HINTS = {
    "strict": "Pass the names or patterns that may differ: allow_missing=['head.*'], allow_unexpected=['*'].",
    "map_location": "Leave it out: values are copied to the device of each tensor of the model.",
    "device": "Leave it out: values are copied to the device of each tensor of the model.",
    "weights_only": "Leave it out: only tensors are ever loaded.",
}


def suggest_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that a misspelled keyword argument raises with a suggestion.

    >>> @suggest_keywords
    ... def load(path, *, allow_missing=()):
    ...     return path
    >>> load("model.fdl", alow_missing=["head.*"])
    Traceback (most recent call last):
    flodl.core.errors.CheckpointError: load has no argument 'alow_missing'. Did you mean 'allow_missing'?
    """
    names = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def checked(*args: P.args, **options: P.kwargs) -> T:
        try:
            return function(*args, **options)
        except TypeError as error:
            wrong = _UNEXPECTED.search(str(error))
            # Errors from inside the function have a longer traceback.
            if wrong is None or error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
        hint = _HINTS.get(wrong[1]) or suggestion(wrong[1], names, known_as="arguments")
        raise CheckpointError(f"{function.__name__} has no argument {wrong[1]!r}. {hint}")

    return checked
