"""How a step function calls the model, compared with the metrics, which get `model(x)` and `y`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from flodl.engine import batch_text

# A loop may call the model often.
_MOST_CALLS = 8
_TOLERANCE = 1e-3


class ModelCall(NamedTuple):
    """The first argument of a call of the model, and what it returned."""

    given: Any
    returned: Any


@contextmanager
def record_calls(model: nn.Module) -> Iterator[list[ModelCall]]:
    """Yield a list that collects the calls of a model, without those of its parts.

    >>> model = nn.Linear(2, 1)
    >>> with record_calls(model) as calls:
    ...     _ = model(torch.ones(3, 2))
    >>> calls[0].given.shape, calls[0].returned.shape
    (torch.Size([3, 2]), torch.Size([3, 1]))
    """
    calls: list[ModelCall] = []
    if isinstance(model, torch.jit.ScriptModule):
        yield calls
        return

    def note(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any], returned: Any) -> None:
        given = next(iter((*args, *named.values())), None)
        if len(calls) < _MOST_CALLS and isinstance(given, Tensor):
            calls.append(ModelCall(given, returned))

    handle = model.register_forward_hook(note, with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()


def other_inputs(calls: Sequence[ModelCall], inputs: Any, predictions: Any) -> str:
    """Return what the step function passes to the model in place of these inputs, or "".

    It is "" if one of the calls has the same input or returned the same predictions.

    >>> x = torch.ones(3, 2)
    >>> other_inputs([ModelCall(x / 255, x)], x, x + 1)
    'other values of the same shape'
    """
    if not calls or not isinstance(inputs, Tensor):
        return ""
    for call in calls:
        if call.given is inputs or _is_same(call.given, inputs) or _are_close(call.returned, predictions):
            return ""
    return described(calls[0].given, inputs)


def described(given: Tensor, inputs: Tensor) -> str:
    """Return how an input of the model differs from that of a batch.

    >>> described(torch.zeros(3, 4), torch.zeros(3, 2, 2).byte())
    'float32 [3, 4] instead of uint8 [3, 2, 2]'
    """
    if given.shape == inputs.shape and given.dtype == inputs.dtype:
        return "other values of the same shape"
    return " instead of ".join(batch_text((one,))[1:-1] for one in (given, inputs))


def other_classes(used: Sequence[tuple[Tensor, int]], targets: Any) -> str:
    """Return a class index that a loss gets in place of another one in the batch, or "".

    `used` are the class indices that losses get, with those that they ignore.

    >>> labels = torch.tensor([1, 2, 3])
    >>> other_classes([(labels - 1, -100)], labels), other_classes([(labels, -100)], labels)
    ('0 instead of 1', '')
    """
    if not used or not isinstance(targets, Tensor) or targets.is_floating_point():
        return ""
    found = ""
    for indices, ignored in used:
        if indices.shape != targets.shape or indices.is_floating_point():
            return ""
        differs = (indices != targets) & (indices != ignored)
        if not bool(differs.any()):
            return ""
        found = f"{indices[differs][0].item()} instead of {targets[differs][0].item()}"
    return found


def _is_same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype or one.is_nested or one.layout != other.layout:
        return False
    return bool(torch.equal(one, other))


def _are_close(one: Any, other: Any) -> bool:
    """Return whether two outputs have the same values, in tensors of the same shapes."""
    pairs = [*map(pytree.tree_leaves, (one, other))]
    if len(pairs[0]) != len(pairs[1]):
        return False
    tensors = [(a, b) for a, b in zip(*pairs) if isinstance(a, Tensor) and isinstance(b, Tensor)]
    return bool(tensors) and all(
        a.shape == b.shape
        and torch.allclose(a.float(), b.float(), rtol=_TOLERANCE, atol=_TOLERANCE * _scale(b), equal_nan=True)
        for a, b in tensors
    )


def _scale(tensor: Tensor) -> float:
    return float(tensor.detach().float().abs().max()) if tensor.numel() else 0.0
