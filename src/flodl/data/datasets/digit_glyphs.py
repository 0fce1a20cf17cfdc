"""The strokes of each digit, as pen paths."""

from __future__ import annotations

import torch
from torch import Tensor

# Each string is one variant of the digit: its strokes, separated by `/`, as points `x,y` on a smooth curve,
# from -100,-100 at the top left to 100,100 at the bottom right. A repeated point is a corner.
_VARIANTS = {
    0: [
        "0,-90 -45,-60 -60,0 -45,60 0,90 45,60 60,0 45,-60 0,-90",
        "20,-90 -30,-70 -45,0 -25,75 10,90 40,50 45,-20 25,-75 -5,-80",
    ],
    1: [
        "0,-90 0,90",
        "-35,-50 5,-90 5,-90 5,90",
        "-30,-60 0,-90 0,-90 0,85 / -35,85 35,85",
    ],
    2: [
        "-50,-50 -25,-85 20,-88 50,-50 30,0 -20,50 -55,85 -55,85 60,85",
        "-45,-60 0,-90 42,-55 20,10 -30,70 -50,65 -30,45 10,75 60,80",
    ],
    3: [
        "-50,-70 -10,-90 35,-75 40,-35 -10,-5 -10,-5 40,15 50,50 20,85 -20,88 -55,65",
        "-45,-85 45,-85 45,-85 -5,-15 -5,-15 40,5 50,45 15,85 -50,70",
    ],
    4: [
        "-30,-85 -55,20 -55,20 60,20 / 25,-35 20,90",
        "25,90 25,-90 25,-90 -60,30 -60,30 60,30",
    ],
    5: [
        "50,-85 -40,-85 -40,-85 -45,-10 -45,-10 10,-20 50,20 40,70 -5,90 -50,70",
        "-30,-80 -40,-10 10,-15 42,25 30,75 -10,90 -45,75 / -30,-80 50,-85",
    ],
    6: [
        "40,-85 -10,-55 -45,0 -50,50 -10,88 35,75 45,35 10,5 -30,20 -48,50",
        "-10,-90 -40,-20 -40,50 0,88 38,55 15,15 -25,30 -36,60",
    ],
    7: [
        "-50,-85 50,-85 50,-85 10,0 -15,90",
        "-50,-80 50,-85 50,-85 -10,90 / -25,5 40,0",
        "-50,-55 -45,-85 -45,-85 45,-80 45,-80 10,-20 0,90",
    ],
    8: [
        "35,-65 0,-90 -40,-60 -20,-20 25,10 45,50 0,90 -45,50 -20,10 25,-20 40,-55 5,-88",
        "0,-90 -35,-50 0,-8 35,-50 0,-90 / 0,-8 -45,40 0,90 45,40 0,-8",
    ],
    9: [
        "40,-55 5,-90 -40,-55 -30,-10 10,-5 42,-50 42,-50 40,20 30,90",
        "38,-65 -5,-90 -42,-50 -10,-8 35,-35 42,-60 42,0 20,60 -30,88",
    ],
}


def pen_paths(num_points: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the points `[variants, points, 2]`, the path length per point, and the digit of each variant.

    >>> points, lengths, digit_of = pen_paths(64)
    >>> points.shape, lengths.shape, digit_of.unique().tolist()
    (torch.Size([22, 64, 2]), torch.Size([22, 64]), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    traces = [_trace(text, num_points) for texts in _VARIANTS.values() for text in texts]
    points, lengths = (torch.stack(parts) for parts in zip(*traces))
    return points, lengths, torch.tensor([digit for digit, texts in _VARIANTS.items() for _ in texts])


def _trace(text: str, count: int) -> tuple[Tensor, Tensor]:
    """Place `count` points along the strokes, evenly by length."""
    curves = [_smooth(_parse(stroke)) for stroke in text.split(" / ")]
    lengths = [float(_steps(curve).sum()) for curve in curves]
    shares = [max(2, round(count * length / sum(lengths))) for length in lengths]
    shares[-1] = count - sum(shares[:-1])
    points = [_evenly(curve, share) for curve, share in zip(curves, shares)]
    return torch.cat(points), torch.cat([torch.full((n,), length / n) for n, length in zip(shares, lengths)])


def _parse(stroke: str) -> Tensor:
    return torch.tensor([[float(number) / 100 for number in point.split(",")] for point in stroke.split()])


def _steps(curve: Tensor) -> Tensor:
    return (curve[1:] - curve[:-1]).square().sum(dim=1).sqrt()


def _smooth(points: Tensor, steps: int = 24) -> Tensor:
    """Run a Catmull–Rom curve through the points."""
    padded = torch.cat([points[:1], points, points[-1:]])
    before, start, end, after = (padded[shift : len(padded) - 3 + shift, None] for shift in range(4))
    t = torch.linspace(0, 1, steps + 1)[:-1, None]
    curve = 0.5 * (
        2 * start
        + (end - before) * t
        + (2 * before - 5 * start + 4 * end - after) * t**2
        + (3 * start - before - 3 * end + after) * t**3
    )
    return torch.cat([curve.reshape(-1, 2), points[-1:]])


def _evenly(curve: Tensor, count: int) -> Tensor:
    """Return `count` equidistant points of the curve."""
    traveled = torch.cat([torch.zeros(1), _steps(curve).cumsum(0)])
    wanted = torch.linspace(0, float(traveled[-1]), count)
    right = torch.searchsorted(traveled, wanted).clamp(1, len(curve) - 1)
    gap = (traveled[right] - traveled[right - 1]).clamp_min(1e-9)
    part = ((wanted - traveled[right - 1]) / gap).clamp(0, 1)[:, None]
    return curve[right - 1] * (1 - part) + curve[right] * part
