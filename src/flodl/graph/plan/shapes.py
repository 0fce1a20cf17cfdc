"""Compare shapes, and merge values of the same shape: torch would broadcast them silently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flodl.core import ShapeError
from flodl.core.formats import a_type

_is_tracing = torch.compiler.is_compiling
_EQUAL = "All of them need the same shape."
_NAMES = "abcdefgh"
_ONE_TENSOR = (
    "Each branch has to return one tensor: select it with a function after the module, for example "
    "FlowBuilder(lstm).through(lambda out: out[0]).build()."
)
# Python would concatenate or reject these, in words of its own.
_CONTAINERS = (tuple, list, dict, str, type(None))
_EQUAL_OR_ONE = "All of them need the same number of dimensions, and each dimension the same size, or 1."


class MergeShapeError(ShapeError):
    """The values of a sum, mean, product or maximum have different shapes."""

    def __init__(self, verb: str, rule: str, values: Sequence[Any]) -> None:
        self._verb, self._values = verb, [*map(_describe, values)]
        are_tensors = not any(isinstance(value, _CONTAINERS) for value in values)
        self._advice = f"{rule} {_broadcasting(verb, len(values))}" if are_tensors else _ONE_TENSOR
        super().__init__(self._text([f"value {position}" for position in range(len(values))]))

    def name_values(self, names: Sequence[str]) -> None:
        """Name the values in the message."""
        self.message = self._text([repr(name) for name in names])

    def _text(self, names: Sequence[str]) -> str:
        values = ", ".join(f"{name} {value}" for name, value in zip(names, self._values))
        return f"cannot {self._verb} {values}. {self._advice}"


def add(first: Any, *others: Any) -> Any:
    """Return the sum of values that have the same shape."""
    _check_equal("add", first, others)
    for other in others:
        first = first + other
    return first


def mean(first: Any, *others: Any) -> Any:
    """Return the mean of values that have the same shape."""
    _check_equal("average", first, others)
    for other in others:
        first = first + other
    return first / (1 + len(others))


def maximum(first: Any, *others: Any) -> Any:
    """Return the elementwise maximum of values that have the same shape."""
    _check_equal("take the maximum of", first, others)
    for other in others:
        first = torch.maximum(first, other)
    return first


def mul(first: Any, *others: Any) -> Any:
    """Return the product of values; a dimension may have size 1 in some of them, as a gate has."""
    for other in others:
        is_container = isinstance(first, _CONTAINERS) or isinstance(other, _CONTAINERS)
        if is_container or (_have_shapes(first, other) and not _fit_but_for_ones(first.shape, other.shape)):
            raise MergeShapeError("multiply", _EQUAL_OR_ONE, [first, *others])
    for other in others:
        first = first * other
    return first


def explain_cat(values: Sequence[Any], names: Sequence[str], dim: int) -> ShapeError | None:
    """Return the error for values that torch cannot concatenate; None if their shapes fit."""
    shown = ", ".join(f"{name!r} {_describe(value)}" for name, value in zip(names, values))
    if not all(isinstance(value, Tensor) for value in values):
        return ShapeError(f"cannot concatenate {shown}. {_ONE_TENSOR}")
    dims = values[0].dim()
    if any(value.dim() != dims or dims == 0 for value in values):
        rule = "All of them need the same number of dimensions, at least 1."
    elif not -dims <= dim < dims:
        rule = f"They have {dims} dimension{'s' * (dims != 1)}: use dim from {-dims} to {dims - 1}."
    elif len({value.shape[: dim % dims] + value.shape[dim % dims + 1 :] for value in values}) > 1:
        rule = "All other dimensions need the same size."
    else:
        return None
    return ShapeError(f"cannot concatenate {shown} along dimension {dim}. {rule}")


def differ(one: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether two shapes are known to be different.

    >>> differ((2, 3), (2, 3)), differ((2, 3), (2, 1))
    (False, True)
    """
    if not _is_tracing():
        return one != other
    # The size of a dimension may be unknown while torch traces, and must not be needed.
    return len(one) != len(other) or any(_is_known(a != b) for a, b in zip(one, other))


def _is_known(condition: Any) -> bool:
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return guard_or_false(condition)


def _check_equal(verb: str, first: Any, others: Sequence[Any]) -> None:
    for other in others:
        # In every call of the model, so the usual case comes first.
        if not _is_tracing() and type(first) is type(other) is Tensor:
            try:
                if first.shape == other.shape:
                    continue
            except RuntimeError:  # a nested tensor without a shape
                continue
        elif isinstance(first, _CONTAINERS) or isinstance(other, _CONTAINERS):
            pass
        elif not _have_shapes(first, other) or not differ(first.shape, other.shape):
            continue
        raise MergeShapeError(verb, _EQUAL, [first, *others])


def _have_shapes(*values: Any) -> bool:
    """Return whether all values have a shape: numbers do not, and some nested tensors do not."""
    return all(isinstance(value, Tensor) and not value.is_nested for value in values)


def _fit_but_for_ones(one: Sequence[int], other: Sequence[int]) -> bool:
    if not differ(one, other):
        return True
    return len(one) == len(other) and all(a == b or 1 in (a, b) for a, b in zip(one, other))


def _describe(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"({a_type(value)} of {len(value)} value{'s' * (len(value) != 1)})"
    if value is None:
        return "(None)"
    return f"of shape {tuple(value.shape)}" if _have_shapes(value) else f"({a_type(value)})"


def _broadcasting(verb: str, count: int) -> str:
    """Return how to write the operation with torch's broadcasting."""
    if count > len(_NAMES):
        return "If you want torch to broadcast, merge with your own function."
    names = list(_NAMES[:count])
    if verb == "multiply":
        result = " * ".join(names)
    elif verb == "average":
        result = f"({' + '.join(names)}) / {count}"
    elif verb == "add":
        result = " + ".join(names)
    else:
        result = names[0]
        for name in names[1:]:
            result = f"torch.maximum({result}, {name})"
    return (
        "If you want torch to broadcast, call split, and merge with your own function: "
        f"merge(lambda {', '.join(names)}: {result})."
    )
