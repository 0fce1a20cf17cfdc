"""Functions over the leaves of a batch with any nested structure."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def container_items(value: Any) -> dict[Any, Any] | None:
    """Return the items of a container that torch's pytree does not know, by key or field; None for a leaf."""
    if isinstance(value, Mapping):
        return {key: value[key] for key in value}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    return None


def leaves_of(batch: Any, *, is_leaf: Callable[[Any], bool] | None = None) -> Iterator[Any]:
    """Yield everything in a batch that is not a container, or for which `is_leaf` holds, in order.

    >>> from collections import UserDict
    >>> list(leaves_of((UserDict(ids=[1, 2]), "word")))
    [1, 2, 'word']
    """
    for leaf in pytree.tree_leaves(batch, is_leaf=is_leaf):
        parts = container_items(leaf)
        if parts is None:
            yield leaf
        else:
            yield from leaves_of(list(parts.values()), is_leaf=is_leaf)


def map_tensors(change: Callable[[Any], Any], batch: Any) -> Any:
    """Return a batch of the same structure with each tensor and array replaced; containers are copied.

    >>> from collections import UserDict
    >>> map_tensors(lambda leaf: leaf + 1, (UserDict(ids=torch.tensor([1, 2])), "word"))
    ({'ids': tensor([2, 3])}, 'word')
    """

    def one(leaf: Any) -> Any:
        if isinstance(leaf, Tensor | np.ndarray):
            return change(leaf)
        parts = container_items(leaf)
        if parts is None:
            return leaf
        return _with_items(leaf, {key: map_tensors(change, part) for key, part in parts.items()})

    return pytree.tree_map(one, batch)


def _with_items(container: Any, parts: dict[Any, Any]) -> Any:
    """Copy a container with new items; a mapping that cannot be written to becomes a dict."""
    if not isinstance(container, Mapping):
        copied = copy.copy(container)
        for name, part in parts.items():
            # Works for a frozen dataclass too.
            object.__setattr__(copied, name, part)
        return copied
    try:
        written: Any = copy.copy(container)
        # A custom mapping keeps its items in an inner dict, which a shallow copy still shares.
        for name, inner in list(getattr(written, "__dict__", {}).items()):
            if isinstance(inner, dict):
                written.__dict__[name] = copy.copy(inner)
        for key, part in parts.items():
            written[key] = part
    except TypeError:
        return parts
    return written


def tensors_of(batch: tuple[Any, ...]) -> list[Tensor]:
    """Return the tensors of a batch, in order."""
    if all(type(leaf) is Tensor for leaf in batch):
        return list(batch)
    return [leaf for leaf in leaves_of(batch) if isinstance(leaf, Tensor)]


def static_copy(batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copy a batch into new tensors with the same strides; a tensor that occurs twice is copied once."""
    copies: dict[int, Any] = {}

    def copy_of(leaf: Any) -> Any:
        if id(leaf) not in copies:
            copies[id(leaf)] = (
                _empty(leaf).copy_(leaf.detach()) if isinstance(leaf, Tensor) else leaf.copy("K")
            )
        return copies[id(leaf)]

    copied: tuple[Any, ...] = map_tensors(copy_of, batch)
    return copied


def _empty(leaf: Tensor) -> Tensor:
    """Return an empty tensor with the same strides, or contiguous if those overlap."""
    if leaf.layout is not torch.strided:
        return torch.empty_like(leaf)
    if any(stride == 0 and length > 1 for stride, length in zip(leaf.stride(), leaf.shape)):
        return torch.empty(leaf.shape, dtype=leaf.dtype, device=leaf.device)
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)


def refill(static: list[Tensor], batch: Sequence[Tensor]) -> None:
    """Write a new batch into the static tensors, in one call."""
    if not static:
        return  # torch refuses an empty list
    with torch.no_grad():
        torch._foreach_copy_(static, batch, non_blocking=True)  # type: ignore[arg-type]
