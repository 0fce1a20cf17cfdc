"""Arithmetic on flat vectors, in parts that fit into caches."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from .outer import OuterOptimizer

CPU_PART = 2**17
DEVICE_PART = 2**24


def parts(*vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Split vectors of the same size in the same way."""
    step = CPU_PART if vectors[0].device.type == "cpu" else DEVICE_PART
    for start in range(0, vectors[0].numel(), step):
        yield tuple(vector[start : start + step] for vector in vectors)


def divide_(vector: Tensor, divisor: float) -> Tensor:
    """Divide in place, rounded in the same way on every device."""
    # Dividing by a number multiplies by its reciprocal on CUDA, and divides on the CPU.
    return vector.div_(torch.tensor(divisor, dtype=vector.dtype, device=vector.device))


def progress(out: Tensor, weights: Tensor, base: Tensor) -> bool:
    """Write weights − base to `out`; return False if the result is not finite."""
    squares = torch.zeros((), dtype=torch.float64, device=out.device)
    for target, now, before in parts(out, weights, base):
        torch.sub(now, before, out=target)
        squares += torch.dot(target, target)
    if math.isfinite(squares.item()):
        return True
    # Infinite constants, such as masks, make no progress.
    out.masked_fill_(weights == base, 0.0)
    return bool(torch.isfinite(out).all())


def advance(
    mean: Tensor, current: Tensor, own: Tensor | None, base: Tensor | None,
    outer: OuterOptimizer, momentum: Tensor | None,
) -> float | None:  # fmt: skip
    """Turn mean progress into the new version, in place, and return the divergence of this rank.

    `own` and `base` are what this rank contributed and its base, both None if it contributed nothing.
    """
    apart = torch.zeros((), dtype=torch.float64, device=mean.device)
    norm = torch.zeros_like(apart)
    others = [own, base] if own is not None and base is not None else []
    states = [momentum] if momentum is not None else []
    for target, start, *rest in parts(mean, current, *others, *states):
        if others:
            distance = rest[0] - rest[1]
            distance.sub_(target)
            apart += torch.dot(distance, distance)
            middle = target + start
            norm += torch.dot(middle, middle)
        outer.update(target, rest[-1] if states else None)
        target.add_(start)
    if not others:
        return None
    distance_squared, norm_squared = apart.item(), norm.item()
    if norm_squared == 0.0:
        return 0.0 if distance_squared == 0.0 else math.inf
    return math.sqrt(distance_squared / norm_squared)


def add_local(local: Tensor, new: Tensor, contributed: Tensor) -> None:
    """Add new − contributed to the local weights; where no step was taken since, they are exactly `new`."""
    for mine, target, sent in parts(local, new, contributed):
        torch.where(mine == sent, target, mine + (target - sent), out=mine)
