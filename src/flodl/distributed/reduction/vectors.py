"""Arithmetic on flat vectors, in parts that fit into caches: memory is slower than arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .outer import OuterOptimizer

CPU_PART = 2**16
DEVICE_PART = 2**26
# On the CPU, the divergence of a large vector is that of every eighth part: each pass over memory counts.
SAMPLED_SIZE, SAMPLE_STRIDE = 2**22, 8


def parts(*vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Split vectors of the same size in the same way."""
    size = CPU_PART if vectors[0].device.type == "cpu" else DEVICE_PART
    split: Any = torch.split
    return zip(*[split(vector, size) for vector in vectors])


def divide_(vector: Tensor, divisor: float) -> Tensor:
    """Divide in place, rounded in the same way on every device."""
    return vector.div_(scalar_like(divisor, vector))


def scalar_like(value: float, vector: Tensor) -> Tensor:
    """Return a number as a tensor on the device, without waiting: `torch.tensor` would copy it from the host.

    Dividing by a plain number multiplies by its reciprocal on CUDA, and divides on the CPU.
    """
    return torch.full((), value, dtype=vector.dtype, device=vector.device)


def progress(out: Tensor, weights: Tensor, base: Tensor, scale: float) -> None:
    """Write scale · (weights − base) to `out`."""
    for target, now, before in parts(out, weights, base):
        torch.sub(now, before, out=target)
        if scale != 1.0:
            target.mul_(scale)


def progress_of_finite(out: Tensor, weights: Tensor, base: Tensor, scale: float) -> bool:
    """The same, without constants such as infinite masks, whose difference would be NaN.

    Returns False if other values are not finite.
    """
    progress(out, weights, base, scale)
    out.masked_fill_(weights == base, 0.0)
    return bool(torch.isfinite(out).all())


def advance(
    total: Tensor, divisor: float, current: Tensor, own: Tensor | None, base: Tensor | None,
    outer: OuterOptimizer, momentum: Tensor | None, scale: float = 1.0,
) -> tuple[float | None, bool]:  # fmt: skip
    """Turn the sum of progress into the new version, in place.

    Returns the divergence of this rank, and False if progress made values NaN or infinite. `own` and `base`
    are what this rank contributed and its base version, or None.
    """
    shared = scalar_like(divisor, total)
    apart: list[Tensor] = []
    norm: list[Tensor] = []
    others = [own, base] if own is not None and base is not None else []
    states = [momentum] if momentum is not None else []
    stride = SAMPLE_STRIDE if total.device.type == "cpu" and total.numel() > SAMPLED_SIZE else 1
    for index, (target, start, *rest) in enumerate(parts(total, current, *others, *states)):
        if divisor != 1.0:
            target.div_(shared)
        if others and index % stride == 0:
            distance = torch.sub(rest[0], rest[1]).sub_(target)
            apart.append(torch.dot(distance, distance))
        if scale != 1.0:
            target.mul_(scale)
        outer.update(target, rest[-1] if states else None)
        target.add_(start)
        norm.append(torch.dot(target, target))
    squared_norm, squared_distance, sampled_norm = _sums(norm, apart, norm[::stride])
    is_finite = math.isfinite(squared_norm)
    if not is_finite:
        is_finite = not bool((~torch.isfinite(total) & (total != current)).any())
    return (_ratio(squared_distance, sampled_norm) if others else None), is_finite


def _sums(*lists: list[Tensor]) -> list[float]:
    """Return the sum of each list; all of them are read from the device at once."""
    sums = [torch.stack(values).double().sum() if values else None for values in lists]
    found = [value for value in sums if value is not None]
    read = iter(torch.stack(found).tolist() if found else ())
    return [0.0 if value is None else next(read) for value in sums]


def _ratio(squared_distance: float, squared_norm: float) -> float:
    if squared_norm == 0.0:
        return 0.0 if squared_distance == 0.0 else math.inf
    return math.sqrt(squared_distance / squared_norm)


def add_local(local: Tensor, new: Tensor, contributed: Tensor) -> None:
    """Add new − contributed to the local weights; where no step was taken since, they are exactly `new`."""
    for mine, target, sent in parts(local, new, contributed):
        torch.where(mine == sent, target, mine + (target - sent), out=mine)
