"""Wire formats: how progress travels between members."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from .links import Link
from .vectors import parts, scalar_like


class Wire(Protocol):
    """Combines the progress of the members, with the same bits on all of them."""

    name: str

    def scale(self, weight: int) -> float:
        """Return what a member multiplies its progress with before `combine_`."""

    def combine_(self, link: Link, vector: Tensor, weights: tuple[int, ...], deadline: float) -> int:
        """Replace a vector by `divisor` times the weighted mean; return the bytes that this member sends."""

    def divisor(self, weights: tuple[int, ...]) -> float:
        """Return what the combined vector is divided by."""


class FullWire:
    """The numbers as they are: float32, or float64 if the state is. The sum is divided once."""

    name = "fp32"

    def scale(self, weight: int) -> float:
        return float(weight)

    def combine_(self, link: Link, vector: Tensor, weights: tuple[int, ...], deadline: float) -> int:
        return link.sum_(vector, deadline) if vector.numel() else 0

    def divisor(self, weights: tuple[int, ...]) -> float:
        return float(sum(weights))


class BFloat16Wire:
    """Half the bytes: progress is rounded to bfloat16, averaged in float32, and the mean is rounded again.

    Each member averages one part for all, in the order of the members, and sends it to the others. The error
    of an element is at most 2⁻⁷ of the weighted mean of |progress|, plus the rounding of float32.
    """

    name = "bf16"

    def __init__(self) -> None:
        self._scratch = torch.empty(0, dtype=torch.bfloat16)

    def scale(self, weight: int) -> float:
        return 1.0

    def combine_(self, link: Link, vector: Tensor, weights: tuple[int, ...], deadline: float) -> int:
        num = vector.numel()
        if not num:
            return 0
        part = -(-num // link.size)
        sent, received = self._buffers(part * link.size, vector.device)
        sent[:num].copy_(vector)
        sent[num:].zero_()
        num_bytes = link.exchange(received, sent, deadline)
        rows = sent.view(link.size, part)
        _average(rows[0], received.view(link.size, part), weights, vector.dtype)
        # gloo sends to all members at once in this way, which is faster than its ring of gathers.
        rows[1:].copy_(rows[0])
        num_bytes += link.exchange(received, sent, deadline)
        vector.copy_(received[:num])
        return num_bytes

    def _buffers(self, num: int, device: torch.device) -> tuple[Tensor, Tensor]:
        if self._scratch.numel() < 2 * num or self._scratch.device != device:
            self._scratch = torch.empty(2 * num, dtype=torch.bfloat16, device=device)
        return self._scratch[:num], self._scratch[num : 2 * num]

    def divisor(self, weights: tuple[int, ...]) -> float:
        return 1.0


def _average(out: Tensor, rows: Tensor, weights: tuple[int, ...], dtype: torch.dtype) -> None:
    """Write the weighted mean of rows to `out`, computed in `dtype`."""
    contributed = [(weight, row) for weight, row in zip(weights, rows.unbind()) if weight]
    for target, *values in parts(out, *[row for _, row in contributed]):
        total = values[0].to(dtype).mul_(contributed[0][0])
        for (weight, _), value in zip(contributed[1:], values[1:]):
            total.add_(value.to(dtype).mul_(weight))
        target.copy_(total.div_(scalar_like(float(sum(weights)), total)))


WIRES: dict[str, type[FullWire] | type[BFloat16Wire]] = {"fp32": FullWire, "bf16": BFloat16Wire}
