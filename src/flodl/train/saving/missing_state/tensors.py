"""The tensors of a nested state, and whether a tensor is one of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor


def is_among(tensor: Tensor, others: Iterable[Tensor]) -> bool:
    """Return whether one of the others has the same elements."""
    one = tensor.detach()
    like = (each for each in others if each.shape == one.shape and each.dtype == one.dtype)
    return any(each.data_ptr() == one.data_ptr() or torch.equal(each.to(one.device), one) for each in like)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a nested state."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors_in(one)
    elif isinstance(value, list | tuple | deque):
        for one in value:
            yield from tensors_in(one)
