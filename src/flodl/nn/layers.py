"""Two small modules for building graphs: a fixed reshape and a sum with referenced values."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from flodl.core import ShapeError
from flodl.core.integers import as_integer, is_integer


class Reshape(nn.Module):
    """Reshape to a fixed full shape, including the batch; one dimension may be −1.

    >>> import torch
    >>> Reshape(-1, 2, 2)(torch.zeros(3, 4)).shape
    torch.Size([3, 2, 2])
    """

    def __init__(self, *shape: int | Sequence[int]) -> None:
        super().__init__()
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        sizes = [as_integer(size) for size in sizes]
        fixed = [size for size in sizes if size != -1]
        if len(sizes) - len(fixed) > 1 or not all(is_integer(size, at_least=1) for size in fixed):
            raise ShapeError(
                f"Reshape{tuple(sizes)} is not a shape. Pass integers above 0, the batch first; "
                "one of them may be -1, to be inferred."
            )
        self.shape: tuple[int, ...] = tuple(sizes)
        self._known = math.prod(size for size in self.shape if size != -1)

    def forward(self, x: Tensor) -> Tensor:
        fits = x.numel() % self._known == 0 if -1 in self.shape else x.numel() == self._known
        if not fits:
            raise ShapeError(
                f"Reshape{self.shape} cannot reshape {list(x.shape)}: {x.numel()} elements do not fit. "
                "The shape includes the batch; use -1 for a batch size that varies."
            )
        return x.reshape(self.shape)

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.shape))


class StateAdd(nn.Module):
    """Add every referenced value to the stream, in the given order; references without a value are skipped.

    >>> import torch
    >>> StateAdd()(torch.ones(2), memory=torch.ones(2), other=None)
    tensor([2., 2.])
    """

    def forward(self, x: Tensor, /, **refs: Tensor | None) -> Tensor:
        for value in refs.values():
            if value is not None:
                x = x + value
        return x
