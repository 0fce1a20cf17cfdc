"""Two tensors, compared bit by bit."""

from __future__ import annotations

import torch
from torch import Tensor


def data_ptr(tensor: Tensor) -> int:
    """Give where the numbers of a tensor lie; 0 for one that is made up of others."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0


def is_conv_weight(parameter: Tensor) -> bool:
    """Say whether a parameter may lie with its channels last."""
    return parameter.dim() in (4, 5)


# What is no wider than float32.
NARROW = (torch.float32, torch.float16, torch.bfloat16)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Say whether two tensors hold the same numbers; what is not a number equals itself.

    >>> same_bits(torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan]))
    True
    """
    if one.layout != other.layout:
        return False
    if one.is_sparse:
        one, other = one.coalesce(), other.coalesce()
        return torch.equal(one.indices(), other.indices()) and same_bits(one.values(), other.values())
    if torch.equal(one, other):
        return True
    same_nan = one.is_floating_point() and torch.equal(one.isnan(), other.isnan())
    return same_nan and torch.equal(one.nan_to_num(), other.nan_to_num())


def widened(tensor: Tensor) -> Tensor:
    """Give the same numbers in double precision, imaginary parts included."""
    return tensor.to(torch.complex128) if tensor.is_complex() else tensor.double()
