"""Batches as the engine sees them: leaves, a structure, and a signature that a capture is made for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Signature = tuple[Hashable, ...]


def signature(batch: tuple[Any, ...]) -> Signature:
    """Give what must stay equal for a recorded program to fit: shapes, dtypes, devices, strides, structure.

    >>> signature((torch.zeros(2, 3),))[0][0]
    torch.Size([2, 3])
    """
    flat = _quick(batch)
    if flat is not None:
        return flat
    leaves, structure = pytree.tree_flatten(batch)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    return (*(_leaf(leaf) for leaf in leaves), structure, *shared_places(tensors))


def _quick(batch: tuple[Any, ...]) -> Signature | None:
    """The common case, a flat tuple of tensors, without the general machinery."""
    found = []
    for leaf in batch:
        if type(leaf) is not Tensor:
            return None
        found.append((leaf.shape, leaf.dtype, leaf.device, leaf.stride()))
    return (*found, *shared_places(batch))


def shared_places(leaves: Sequence[Any]) -> tuple[int, ...]:
    """Give, for leaves of which one is there twice, where each was seen first; nothing where all differ.

    >>> x = torch.zeros(2)
    >>> shared_places([x, torch.zeros(2), x]), shared_places([x])
    ((0, 1, 0), ())
    """
    first = {id(leaf): place for place, leaf in reversed(list(enumerate(leaves)))}
    return () if len(first) == len(leaves) else tuple(first[id(leaf)] for leaf in leaves)


def _leaf(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return (leaf.shape, leaf.dtype, leaf.device, leaf.stride())
    try:
        hash(leaf)
    except TypeError:
        return (type(leaf), repr(leaf))
    return (type(leaf), leaf)


def tensors_of(batch: tuple[Any, ...]) -> list[Tensor]:
    """Give the tensors of a batch, in order."""
    if all(type(leaf) is Tensor for leaf in batch):
        return list(batch)
    return [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]


def same_form(inputs: Sequence[Tensor]) -> Callable[..., bool]:
    """Give what says of as many values whether they are tensors of exactly the form of these.

    >>> fits = same_form([torch.zeros(2, 3), torch.zeros(2)])
    >>> fits(torch.ones(2, 3), torch.ones(2)), fits(torch.ones(3, 2), torch.ones(2)), fits("a", "b")
    (True, False, False)
    """
    try:
        # What torch's compiler asks of its inputs, in one call; in Python it takes five times as long.
        guards = torch._C._dynamo.guards.TensorGuards(
            *inputs, dynamic_dims_sizes=None, dynamic_dims_strides=None
        )
        if guards.check(*inputs):
            check: Callable[..., bool] = guards.check
            return check
    except (AttributeError, TypeError, ValueError):
        pass
    forms = [_leaf(leaf) for leaf in inputs]
    return lambda *given: [_leaf(leaf) if type(leaf) is Tensor else None for leaf in given] == forms


def num_samples(batch: tuple[Any, ...]) -> int:
    """Give the leading length of the first tensor, which is the number of samples; 1 where there is none.

    >>> num_samples((torch.zeros(32, 3), torch.zeros(32)))
    32
    """
    leaves = batch if batch and type(batch[0]) is Tensor else pytree.tree_leaves(batch)
    for leaf in leaves:
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            return int(leaf.shape[0])
    return 1


def pieces_of(batch: tuple[Any, ...], count: int) -> list[tuple[Any, ...]]:
    """Cut a batch into at most `count` parts along its samples; what has no samples goes to every part.

    >>> [part[0].tolist() for part in pieces_of((torch.arange(5), "name"), 2)]
    [[0, 1, 2], [3, 4]]
    """
    total = num_samples(batch)
    size = -(-total // count)

    def cut(start: int) -> tuple[Any, ...]:
        part: tuple[Any, ...] = pytree.tree_map_only(
            Tensor,
            lambda leaf: leaf[start : start + size] if leaf.dim() > 0 and leaf.shape[0] == total else leaf,
            batch,
        )
        return part

    return [cut(start) for start in range(0, total, size)]


def static_copy(batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copy a batch into tensors of its own, keeping the strides; a tensor that is there twice stays one."""
    made: dict[int, Tensor] = {}

    def copy_of(leaf: Tensor) -> Tensor:
        if id(leaf) not in made:
            made[id(leaf)] = torch.empty_like(leaf, memory_format=torch.preserve_format).copy_(leaf)
        return made[id(leaf)]

    copied: tuple[Any, ...] = pytree.tree_map_only(Tensor, copy_of, batch)
    return copied


def refill(static: list[Tensor], batch: Sequence[Tensor]) -> None:
    """Write a new batch into the static tensors, in one call."""
    torch._foreach_copy_(static, batch, non_blocking=True)  # type: ignore[arg-type]
