"""Generated images of handwritten digits: a dataset that needs no download."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flodl.core.integers import as_integer, is_integer
from flodl.core.usage.calls import DataCallError, explain_calls

from .digit_glyphs import pen_paths

_POINTS = 64  # points of a pen path; closer than the pen is wide at every supported size
_CHUNK = 1024  # images drawn at once: the two [images, points, size] factors stay in the CPU cache


@explain_calls(DataCallError, example="Write digits(1000).")
def digits(count: int, *, seed: int = 0, size: int = 28) -> tuple[Tensor, Tensor]:
    """Draw `count` digits: images `[count, 1, size, size]` from 0 to 1, and their labels.

    Every digit has two or three variants; each image is bent, rotated, slanted, scaled and shifted, then
    drawn with a random pen width and a little noise. The same seed returns the same images, and the classes
    are as balanced as `count` allows.

    >>> images, labels = digits(100, seed=1)
    >>> images.shape, images.dtype, labels.bincount().tolist()
    (torch.Size([100, 1, 28, 28]), torch.float32, [10, 10, 10, 10, 10, 10, 10, 10, 10, 10])
    >>> torch.equal(images, digits(100, seed=1)[0])
    True
    """
    count = as_integer(count)
    if not is_integer(count, at_least=1):
        raise ValueError(f"count={count!r}. Pass an integer >= 1.")
    if not 12 <= size <= 128:
        raise ValueError(f"size={size}. Pass 12 to 128 pixels.")
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.arange(count) % 10)[torch.randperm(count, generator=generator)]
    glyphs = pen_paths(_POINTS)
    images = torch.cat([_draw(part, glyphs, size, generator) for part in torch.split(labels, _CHUNK)])
    return images.unsqueeze(1), labels


def _draw(
    labels: Tensor, glyphs: tuple[Tensor, Tensor, Tensor], size: int, generator: torch.Generator
) -> Tensor:
    points, lengths, digit_of = glyphs
    # A random variant of the right digit, all equally likely.
    scores = torch.rand(len(labels), len(digit_of), generator=generator)
    chosen = scores.masked_fill(digit_of != labels[:, None], -1).argmax(dim=1)
    transformed = _transform(_bend(points[chosen], generator), generator)
    ink = _render(transformed, lengths[chosen], size, generator)
    noise = torch.randn(ink.shape, generator=generator) * 0.06
    return (ink + noise).clamp_(0, 1)


def _bend(points: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each point by a smooth wave, so that joined strokes stay joined."""
    count = len(points)
    waves = 3
    direction = torch.randn(count, 2, waves, generator=generator) * 1.6
    phase = torch.rand(count, 1, waves, generator=generator) * 2 * math.pi
    push = torch.randn(count, waves, 2, generator=generator) * 0.075
    return points + torch.sin(points @ direction + phase) @ push


def _transform(points: Tensor, generator: torch.Generator) -> Tensor:
    """Rotate, slant, scale and shift each digit as a whole."""

    def between(low: float, high: float) -> Tensor:
        return torch.rand(len(points), generator=generator) * (high - low) + low

    angle, slant = between(-0.3, 0.3), between(-0.3, 0.3)
    width, height = between(0.5, 0.8), between(0.5, 0.75)
    cos, sin = angle.cos(), angle.sin()
    matrix = torch.stack(
        [cos * width, sin * width, (slant * cos - sin) * height, (slant * sin + cos) * height]
    )
    shift = torch.stack([between(-0.2, 0.2), between(-0.2, 0.2)], dim=1)
    return points @ matrix.T.reshape(-1, 2, 2) + shift[:, None]


def _render(points: Tensor, lengths: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Draw a round mark at each point: a mark is an outer product, so one matmul draws them all."""
    pixels = (torch.arange(size) + 0.5) * (2 / size) - 1
    radius = (torch.rand(len(points), 1, 1, generator=generator) * 0.035 + 0.04).clamp_min(1.0 / size)
    across = torch.exp(-(((pixels - points[..., :1]) / radius) ** 2) / 2)
    down = torch.exp(-(((pixels - points[..., 1:]) / radius) ** 2) / 2)
    pressure = torch.rand(len(points), 1, 1, generator=generator) * 1.5 + 1.5
    covered = down.mT @ (across * lengths[..., None]) / radius
    return 1 - torch.exp(-pressure * 0.4 * covered)
