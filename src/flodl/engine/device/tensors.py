"""Facts about tensors: data pointer, dtype width, bitwise equality; scalars that are read together."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def data_ptr(tensor: Tensor) -> int:
    """Return the data pointer of a tensor; 0 for one without storage, such as a wrapper subclass."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0


def is_conv_weight(parameter: Tensor) -> bool:
    """Return whether a parameter may have a channels-last memory format."""
    return parameter.dim() in (4, 5)


# Floating-point dtypes up to float32.
NARROW = (torch.float32, torch.float16, torch.bfloat16)


# Dtypes that torch can compare; others (float8, complex32, bits16) are compared by their bytes.
_COMPARABLE = {
    *NARROW,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
}


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors hold the same numbers; NaN equals NaN.

    >>> same_bits(torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan]))
    True
    """
    if one.layout != other.layout:
        return False
    if one.is_sparse:
        one, other = one.coalesce(), other.coalesce()
        return torch.equal(one.indices(), other.indices()) and same_bits(one.values(), other.values())
    if one.dtype not in _COMPARABLE and one.dtype == other.dtype and one.shape == other.shape:
        return torch.equal(_bytes(one), _bytes(other))
    if torch.equal(one, other):
        return True
    same_nan = one.is_floating_point() and torch.equal(one.isnan(), other.isnan())
    return same_nan and torch.equal(one.nan_to_num(), other.nan_to_num())


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1, 1).view(torch.uint8)


# Elements that are converted to double precision at a time: a whole tensor would need several times its
# memory.
ELEMENTS_AT_ONCE = 1 << 22


def square_sum(tensor: Tensor, minus: Tensor | None = None, *, device: torch.device | None = None) -> Tensor:
    """Return the sum of squares of a tensor, or of its difference from another, in double precision.

    It is computed on a device, by default where the tensor is.

    >>> square_sum(torch.tensor([3.0, 4.0])), square_sum(torch.tensor([3.0, 4.0]), torch.tensor([2.0, 4.0]))
    (tensor(25., dtype=torch.float64), tensor(1., dtype=torch.float64))
    """
    if tensor.numel() <= ELEMENTS_AT_ONCE or tensor.layout is not torch.strided:
        return _square_sum(tensor, minus, device)
    pieces = torch.split(tensor.reshape(-1), ELEMENTS_AT_ONCE)
    if minus is None:
        return torch.stack([_square_sum(piece, None, device) for piece in pieces]).sum()
    others = torch.split(minus.reshape(-1), ELEMENTS_AT_ONCE)
    return torch.stack([_square_sum(*pair, device) for pair in zip(pieces, others, strict=True)]).sum()


def _square_sum(tensor: Tensor, minus: Tensor | None, device: torch.device | None) -> Tensor:
    device = device or tensor.device
    numbers = widened(tensor.to(device))
    if minus is not None:
        numbers = numbers - widened(minus.to(device))
    return numbers.abs().square().sum()


def widened(tensor: Tensor) -> Tensor:
    """Return a tensor in double precision, as complex128 if it is complex."""
    return tensor.to(torch.complex128) if tensor.is_complex() else tensor.double()


def stacked_by_device(numbers: Iterable[Tensor]) -> list[Tensor]:
    """Return scalars as one tensor for each device, so that reading them waits once for each.

    >>> stacked_by_device([torch.tensor(1.0), torch.tensor(2.0)])
    [tensor([1., 2.])]
    """
    found: dict[torch.device, list[Tensor]] = {}
    for one in numbers:
        found.setdefault(one.device, []).append(one)
    return [torch.stack(each) for each in found.values()]
