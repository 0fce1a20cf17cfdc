"""The tensors of a batch of any structure."""

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
    """Give what a container holds that torch's pytree does not know, by key or field; None for a leaf."""
    if isinstance(value, Mapping):
        return {key: value[key] for key in value}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    return None


def leaves_of(batch: Any) -> Iterator[Any]:
    """Give everything in a batch that is no container, in order.

    >>> from collections import UserDict
    >>> list(leaves_of((UserDict(ids=[1, 2]), "word")))
    [1, 2, 'word']
    """
    for leaf in pytree.tree_leaves(batch):
        parts = container_items(leaf)
        if parts is None:
            yield leaf
        else:
            yield from leaves_of(list(parts.values()))


def map_tensors(change: Callable[[Any], Any], batch: Any) -> Any:
    """Give a batch of the same structure whose tensors and arrays were changed; containers are copied.

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
        return _with_parts(leaf, {key: map_tensors(change, part) for key, part in parts.items()})

    return pytree.tree_map(one, batch)


def _with_parts(container: Any, parts: dict[Any, Any]) -> Any:
    """Copy a container and put other parts into the copy; one that cannot be written to becomes a dict."""
    if not isinstance(container, Mapping):
        twin = copy.copy(container)
        for name, part in parts.items():
            # Past what a frozen dataclass forbids.
            object.__setattr__(twin, name, part)
        return twin
    try:
        written: Any = copy.copy(container)
        # A mapping of one's own keeps its items in a dict of its own, which a copy still shares.
        for name, kept in list(getattr(written, "__dict__", {}).items()):
            if isinstance(kept, dict):
                written.__dict__[name] = copy.copy(kept)
        for key, part in parts.items():
            written[key] = part
    except TypeError:
        return parts
    return written


def tensors_of(batch: tuple[Any, ...]) -> list[Tensor]:
    """Give the tensors of a batch, in order."""
    if all(type(leaf) is Tensor for leaf in batch):
        return list(batch)
    return [leaf for leaf in leaves_of(batch) if isinstance(leaf, Tensor)]


def static_copy(batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copy a batch into tensors of its own, keeping the strides; a tensor that is there twice stays one."""
    made: dict[int, Any] = {}

    def copy_of(leaf: Any) -> Any:
        if id(leaf) not in made:
            made[id(leaf)] = _blank(leaf).copy_(leaf.detach()) if isinstance(leaf, Tensor) else leaf.copy("K")
        return made[id(leaf)]

    copied: tuple[Any, ...] = map_tensors(copy_of, batch)
    return copied


def _blank(leaf: Tensor) -> Tensor:
    """Give a tensor that lies in memory as this one does, as far as it can be written to."""
    if leaf.layout is not torch.strided:
        return torch.empty_like(leaf)
    if any(step == 0 and length > 1 for step, length in zip(leaf.stride(), leaf.shape)):
        return torch.empty(leaf.shape, dtype=leaf.dtype, device=leaf.device)
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)


def refill(static: list[Tensor], batch: Sequence[Tensor]) -> None:
    """Write a new batch into the static tensors, in one call."""
    with torch.no_grad():
        torch._foreach_copy_(static, batch, non_blocking=True)  # type: ignore[arg-type]
