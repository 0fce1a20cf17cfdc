"""Tensors of any shape and dtype as one flat vector, in memory that is reused."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_WIDE = (torch.float64, torch.complex128)


class FlatTensors:
    """One vector for the values of several tensors, followed by `extra` elements.

    It is float64 if one of the tensors is, otherwise float32, so that sums of half-precision numbers keep
    their precision.

    >>> tensors = [torch.ones(2, 1, dtype=torch.bfloat16), torch.tensor([1 + 2j])]
    >>> flat = FlatTensors(tensors, extra=1)
    >>> flat.read(tensors)
    >>> flat.vector.mul_(2)[:4]
    tensor([2., 2., 2., 4.])
    >>> flat.write(tensors)
    >>> tensors[1]
    tensor([2.+4.j])
    """

    def __init__(self, tensors: Sequence[Tensor], *, extra: int = 0) -> None:
        shapes = [tensor.shape for tensor in _real(tensors)]
        lengths = [shape.numel() for shape in shapes]
        dtype = torch.float64 if any(tensor.dtype in _WIDE for tensor in tensors) else torch.float32
        self.vector = torch.zeros(sum(lengths) + extra, dtype=dtype, device=tensors[0].device)
        parts = torch.split(self.vector[: sum(lengths)], lengths)
        self._views = [part.view(shape) for part, shape in zip(parts, shapes)]

    def read(self, tensors: Sequence[Tensor]) -> None:
        """Copy the values of the tensors into the vector."""
        torch._foreach_copy_(self._views, _real(tensors))

    def write(self, tensors: Sequence[Tensor]) -> None:
        """Copy the vector into the tensors."""
        torch._foreach_copy_(_real(tensors), self._views)


def _real(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return complex tensors as pairs of real numbers, and others as they are."""
    return [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in tensors]
