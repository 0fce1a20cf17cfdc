"""Whether the code of a step function mentions a sum."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from flodl.core.contents import is_user_file

from .outside_values import function_of, outside_values


def mentions_sum(step_fn: Callable[..., Any]) -> bool:
    """Return whether a step function, or a loss module that it uses, may sum.

    >>> criterion = nn.MSELoss(reduction="sum")
    >>> mentions_sum(lambda model, x, y: criterion(model(x), y))
    True
    >>> mentions_sum(lambda model, x, y: ((model(x) - y) ** 2).sum())
    True
    >>> mentions_sum(lambda model, x, y: ((model(x) - y) ** 2).mean())
    False
    """
    function = inspect.unwrap(step_fn.forward if isinstance(step_fn, nn.Module) else function_of(step_fn))
    used = [function, *outside_values(step_fn).values()]
    codes = [value.__code__ for value in used if isinstance(value, FunctionType)]
    return any(map(_is_in, codes)) or any(getattr(value, "reduction", "") == "sum" for value in used)


def _is_in(code: CodeType) -> bool:
    if not is_user_file(code.co_filename):
        return False
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return "sum" in code.co_names or "sum" in code.co_consts or any(map(_is_in, inner))
