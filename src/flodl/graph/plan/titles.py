"""Titles of nodes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn


def title_of(target: Callable[..., Any]) -> str:
    """Return the type of a module or the name of a function.

    >>> title_of(nn.Linear(2, 3)), title_of(len), title_of(lambda x: x), title_of(functools.partial(max, 1))
    ('Linear', 'len', 'lambda', 'max')
    """
    if isinstance(target, functools.partial):
        return title_of(target.func)
    name = None if isinstance(target, nn.Module) else getattr(target, "__name__", None)
    return str(name or type(target).__name__).strip("<>")
