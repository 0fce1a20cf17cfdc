"""Exact comparison of nested states, bit by bit and type by type."""

import math
from typing import Any

import numpy
import torch
from torch import Tensor


def same(one: Any, other: Any) -> bool:
    """Return whether two states are equal in structure, type, order and bits."""
    if isinstance(one, Tensor):
        return (
            isinstance(other, Tensor)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and torch.equal(one.contiguous().view(-1).view(torch.uint8), other.view(-1).view(torch.uint8))
        )
    if isinstance(one, numpy.ndarray):
        return isinstance(other, numpy.ndarray) and one.dtype == other.dtype and numpy.array_equal(one, other)
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and [(type(key), key) for key in one] == [(type(key), key) for key in other]
            and all(same(one[key], other[key]) for key in one)
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or one.hex() == other.hex()
    return bool(one == other)
