"""The signature of a batch: structure, shapes, dtypes and devices."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .tree import container_items, leaves_of, tensors_of

Signature = tuple[Hashable, ...]


def signature(batch: tuple[Any, ...]) -> Signature:
    """Return what must stay equal for a recording to fit: shapes, dtypes, devices, strides, structure.

    >>> signature((torch.zeros(2, 3),))[0][0]
    torch.Size([2, 3])
    """
    # The common case, a flat tuple of different tensors, in one pass: it runs in every step.
    found: list[Hashable] = []
    for leaf in batch:
        if type(leaf) is not Tensor or leaf.is_nested:
            break
        found.append((leaf.shape, leaf.dtype, leaf.device, leaf.stride(), leaf.requires_grad))
    else:
        return tuple(found) if len({*map(id, batch)}) == len(batch) else (*found, *shared_indices(batch))
    leaves, structure = pytree.tree_flatten(batch)
    return (*(_container_signature(leaf) for leaf in leaves), structure, *shared_indices(tensors_of(batch)))


def shared_indices(leaves: Sequence[Any]) -> tuple[int, ...]:
    """Return the index of the first occurrence of each leaf; empty if all differ.

    >>> x = torch.zeros(2)
    >>> shared_indices([x, torch.zeros(2), x]), shared_indices([x])
    ((0, 1, 0), ())
    """
    first = {id(leaf): index for index, leaf in reversed(list(enumerate(leaves)))}
    return () if len(first) == len(leaves) else tuple(first[id(leaf)] for leaf in leaves)


def _container_signature(value: Any) -> Hashable:
    """Return the signature of a pytree leaf, which may be a container unknown to torch."""
    parts = container_items(value)
    if parts is None:
        return _leaf_signature(value)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    leaves, structure = pytree.tree_flatten(list(parts.values()))
    return (kind, tuple(parts), structure, *(_container_signature(leaf) for leaf in leaves))


def _leaf_signature(leaf: Any) -> Hashable:
    if _has_no_shape(leaf):
        return (type(leaf), id(leaf))
    if isinstance(leaf, Tensor):
        return (leaf.shape, leaf.dtype, leaf.device, leaf.stride(), leaf.requires_grad)
    if isinstance(leaf, np.ndarray):
        return (np.ndarray, leaf.shape, leaf.dtype.str, leaf.strides)
    try:
        hash(leaf)
    except TypeError:
        return (type(leaf), repr(leaf))
    return (type(leaf), leaf)


def _has_no_shape(leaf: Any) -> bool:
    """Return whether this is a nested tensor of the older layout, whose shape is unknown."""
    return isinstance(leaf, Tensor) and leaf.is_nested and leaf.layout is torch.strided


def opaque_part(batch: tuple[Any, ...]) -> Any:
    """Return a part of a batch that can only be compared by identity; None if there is none.

    >>> class Pair: ...
    >>> pair = Pair()
    >>> opaque_part((torch.zeros(1), {"a": 1}, pair)) is pair, opaque_part((torch.zeros(1), "word"))
    (True, None)
    """
    for leaf in leaves_of(batch):
        plain = isinstance(leaf, Tensor | np.ndarray | type) or leaf is None
        is_own = not plain and getattr(type(leaf), "__eq__", None) is object.__eq__
        if is_own or _has_no_shape(leaf):
            return leaf
    return None


def same_layout(inputs: Sequence[Tensor]) -> Callable[..., bool]:
    """Return a function that checks whether values are tensors with exactly the layout of these.

    >>> fits = same_layout([torch.zeros(2, 3), torch.zeros(2)])
    >>> fits(torch.ones(2, 3), torch.ones(2)), fits(torch.ones(3, 2), torch.ones(2)), fits("a", "b")
    (True, False, False)
    """
    try:
        # The guards of torch's compiler, in one call; in Python the check takes five times as long.
        guards = torch._C._dynamo.guards.TensorGuards(
            *inputs, dynamic_dims_sizes=None, dynamic_dims_strides=None
        )
        if guards.check(*inputs):
            check: Callable[..., bool] = guards.check
            return check
    except (AttributeError, TypeError, ValueError):
        pass
    expected = [_leaf_signature(leaf) for leaf in inputs]
    return lambda *values: (
        [_leaf_signature(leaf) if type(leaf) is Tensor else None for leaf in values] == expected
    )
