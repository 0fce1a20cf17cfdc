"""Values that a graph carries from one call to the next, on every tier."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .last_values import LastValues

_MARK = "_flodl_is_overwritten"


class CarriedValues(LastValues):
    """The values of the last call, those that the next call continues (`carried`), and its batch size.

    `carried` has one value for each carried tag: None before the first call, or tensors in any structure.
    While a recording is replayed, they are the tensors that it reads and writes in place; `unshared` protects
    what a reader keeps.
    """

    def __init__(self, values: Any, num_carried: int) -> None:
        super().__init__(values)
        self.carried: tuple[Any, ...] = (None,) * num_carried
        self.batch: int | None = None


def mark_overwritten(tensor: Tensor) -> None:
    """Mark a tensor that every replay of a recording overwrites."""
    setattr(tensor, _MARK, True)


def unshared(value: Any) -> Any:
    """Return a nested value that no replay changes: with copies of the tensors that recordings overwrite.

    >>> plain, overwritten = torch.zeros(2), torch.zeros(2)
    >>> mark_overwritten(overwritten)
    >>> found = unshared((plain, overwritten))
    >>> found[0] is plain, found[1] is overwritten
    (True, False)
    """
    if isinstance(value, Tensor):
        return _unshared(value)
    return pytree.tree_map_only(Tensor, _unshared, value)


def _unshared(tensor: Tensor) -> Tensor:
    if not hasattr(tensor, _MARK):
        return tensor
    # Unlike `clone`, this keeps the strides in every case: a kernel for others may round differently.
    copied = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return copied.copy_(tensor)
