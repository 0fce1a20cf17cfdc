"""Which argument of a step function is which part of the batch."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ..batch.keywords import takes_names
from ..settings import StepFunction
from .batch_text import batch_text

# Tensors of a batch, with what a step function calls them.
Named = Sequence[tuple[str, Tensor]]


def order_text(step_fn: StepFunction, batch: tuple[Any, ...]) -> str:
    """Return which argument is which part of a batch of several parts, or "".

    >>> order_text(lambda model, x, y: x, (Tensor([1.0]), Tensor([2.0]).long()))
    'x is float32 [1] and y is int64 [1]'
    """
    names = parameter_names(step_fn)
    if len(batch) < 2 or len(names) < len(batch):
        return ""
    parts = [f"{name} is {batch_text((part,))[1:-1]}" for name, part in zip(names, batch)]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def named_tensors(step_fn: StepFunction, batch: tuple[Any, ...]) -> list[tuple[str, Tensor]]:
    """Return the tensors of a batch as the step function reads them.

    >>> [name for name, tensor in named_tensors(lambda m, b: b, ({"x": Tensor([1.0])},))]
    ["b['x']"]
    """
    names = parameter_names(step_fn)
    if takes_names(step_fn) is not None:
        names = ["batch"]
    if len(names) < len(batch):
        names = [f"part {number} of the batch" for number in range(1, len(batch) + 1)]
    return [found for name, part in zip(names, batch) for found in _tensors_in(name, part)]


def base_of(tensor: Tensor) -> Tensor:
    """Return the tensor that this one is a view of, or itself."""
    return tensor if tensor._base is None else tensor._base


def _tensors_in(name: str, part: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(part, Tensor):
        yield name, part
    elif isinstance(part, Mapping):
        for key in part:
            yield from _tensors_in(f"{name}[{key!r}]", part[key])
    elif isinstance(part, list | tuple):
        for at, item in enumerate(part):
            yield from _tensors_in(f"{name}[{at}]", item)


def parameter_names(step_fn: StepFunction) -> list[str]:
    """Return the names of the parameters after the model, if they can be known."""
    function: Any = step_fn.forward if isinstance(step_fn, nn.Module) else step_fn
    try:
        parameters = [*inspect.signature(function).parameters.values()][1:]
    except (TypeError, ValueError):
        return []
    return [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
