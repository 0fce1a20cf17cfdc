"""Conversion of image bytes to the requested dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from flodl.core.errors import DataError


def scale(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Return bytes unchanged, or scaled to floating-point numbers from 0 to 1.

    >>> scale(torch.tensor([0, 255], dtype=torch.uint8), torch.float32)
    tensor([0., 1.])
    """
    if dtype == torch.uint8:
        return images
    if not dtype.is_floating_point:
        raise DataError(f"dtype={dtype}. Use torch.uint8 for bytes, or a floating-point type for 0 to 1.")
    return images.to(torch.float32).div_(255).to(dtype)
