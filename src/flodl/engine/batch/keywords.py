"""Batches that are passed by keyword: `step(**batch)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from torch import nn

from ..errors import StepCallError

_TAKES_NAMES = "_flodl_takes_names"


def taking_a_dict(step_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step function that takes the batch as one dict, if `step_fn` takes it by keyword alone.

    >>> taking_a_dict(lambda model, **batch: batch["x"])(None, {"x": 3})
    3
    >>> taking_a_dict(len) is len
    True
    """
    parameters = _parameters(step_fn)[1:]
    positional = ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD", "VAR_POSITIONAL")
    takes_names = any(
        parameter.kind is parameter.VAR_KEYWORD
        or (parameter.kind is parameter.KEYWORD_ONLY and parameter.name != "mask")
        for parameter in parameters
    )
    if not takes_names or any(parameter.kind.name in positional for parameter in parameters):
        return step_fn

    def by_name(model: nn.Module, batch: Mapping[str, Any], **mask: Any) -> Any:
        return step_fn(model, **batch, **mask)

    signature = inspect.signature(by_name)
    wrapped: Any = wraps(step_fn)(by_name)
    # Its own signature, not that of the function inside.
    wrapped.__signature__ = signature
    setattr(wrapped, _TAKES_NAMES, step_fn)
    return wrapped  # type: ignore[no-any-return]


def takes_names(step_fn: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the user's function inside `taking_a_dict`, or None."""
    return getattr(step_fn, _TAKES_NAMES, None)


def by_position(
    step_fn: Callable[..., Any], batch: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return the batch in the order of the step function's parameters.

    >>> by_position(lambda model, x, y=2, z=3: None, (), {"z": 1, "x": 0})
    (0, 2, 1)
    """
    if takes_names(step_fn) is not None and not batch:
        return (dict(named),)
    parameters = [one for one in _parameters(step_fn)[1:] if one.kind is one.POSITIONAL_OR_KEYWORD]
    names = [parameter.name for parameter in parameters]
    rest = parameters[len(batch) :]
    unknown = [name for name in named if name not in names]
    twice = [name for name in named if name in names[: len(batch)]]
    last = max((number for number, one in enumerate(rest) if one.name in named), default=-1)
    missing = [one.name for one in rest if one.name not in named and one.default is one.empty]
    if unknown or twice or missing:
        raise _mismatch(names, named, unknown, twice, missing)
    return (*batch, *(named.get(one.name, one.default) for one in rest[: last + 1]))


def _mismatch(
    names: list[str], named: Mapping[str, Any], unknown: list[str], twice: list[str], missing: list[str]
) -> StepCallError:
    told = f"the step was called with keyword arguments ({', '.join(named)})."
    takes = f"the step function takes ({', '.join(['model', *names])})"
    if unknown:
        return StepCallError(
            f"{told} There is no parameter {unknown[0]!r}: {takes}. Pass the batch alone. To use "
            f"{unknown[0]} in the step function, add a parameter to it."
        )
    if twice:
        return StepCallError(f"{told} {twice[0]!r} is also passed by position: {takes}. Pass each part once.")
    return StepCallError(f"{told} {missing[0]!r} is missing: {takes}.")


def _parameters(step_fn: Callable[..., Any]) -> list[inspect.Parameter]:
    function: Any = step_fn.forward if isinstance(step_fn, nn.Module) else step_fn
    try:
        return [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return []
