"""Differentiable Gaussian blur of images and feature maps."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from flodl.core import ShapeError
from flodl.core.formats import a_type

from .numbers import is_number


def gaussian_blur_2d(image: Tensor, sigma: float) -> Tensor:
    """Blur the last two dimensions of a floating-point tensor.

    The kernel is 2⌈3σ⌉ + 1 wide and sums to 1. The image is padded with zeros, so the borders darken.

    >>> dot = torch.zeros(5, 5)
    >>> dot[2, 2] = 1.0
    >>> [round(value, 4) for value in gaussian_blur_2d(dot, 0.5)[2].tolist()]
    [0.0002, 0.0837, 0.6187, 0.0837, 0.0002]
    """
    _check_sigma(sigma)
    if not isinstance(image, Tensor):
        raise ShapeError(f"gaussian blur: the image is {a_type(image)}. Pass a floating-point tensor.")
    if image.dim() < 2 or not image.is_floating_point():
        raise ShapeError(
            f"gaussian blur: the image is {image.dtype} of shape {list(image.shape)}. "
            "Pass a floating-point tensor whose last two dimensions are height and width."
        )
    kernel = _kernel(sigma, image)
    radius = len(kernel) // 2
    # Two one-dimensional passes cost 2k products per pixel; a square kernel costs k².
    planes = image.reshape(-1, 1, *image.shape[-2:])
    planes = functional.conv2d(planes, kernel.view(1, 1, -1, 1), padding=(radius, 0))
    planes = functional.conv2d(planes, kernel.view(1, 1, 1, -1), padding=(0, radius))
    return planes.reshape(image.shape)


class GaussianBlur(nn.Module):
    """`gaussian_blur_2d` as a module.

    >>> GaussianBlur(1.5)
    GaussianBlur(sigma=1.5)
    """

    def __init__(self, sigma: float) -> None:
        super().__init__()
        _check_sigma(sigma)
        self.sigma = sigma

    def forward(self, image: Tensor) -> Tensor:
        return gaussian_blur_2d(image, self.sigma)

    def extra_repr(self) -> str:
        return f"sigma={self.sigma}"


def _check_sigma(sigma: Any) -> None:
    if not is_number(sigma) or not 0 < sigma < math.inf:
        raise ValueError(f"gaussian blur: sigma={sigma!r}, expected a finite width above 0, in pixels.")


def _kernel(sigma: float, image: Tensor) -> Tensor:
    """Return the kernel weights, created on the image's device so that a captured step needs no copy."""
    radius = math.ceil(3 * sigma)
    working = torch.float64 if image.dtype == torch.float64 else torch.float32
    offsets = torch.arange(-radius, radius + 1, device=image.device, dtype=working)
    weights = torch.exp(-0.5 * (offsets / sigma) ** 2)
    return (weights / weights.sum()).to(image.dtype)
