"""Wire formats: how progress travels between members."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from .links import Link
from .vectors import divide_


class Wire(Protocol):
    """Computes the weighted mean of a vector over the members, with the same bits on all of them."""

    name: str

    def mean_(self, link: Link, vector: Tensor, weights: tuple[int, ...], deadline: float) -> int:
        """Replace a vector by Σ weight · vector / Σ weight; return the bytes that this member sends."""


class FullWire:
    """The numbers as they are: float32, or float64 where the state is."""

    name = "fp32"

    def mean_(self, link: Link, vector: Tensor, weights: tuple[int, ...], deadline: float) -> int:
        vector.mul_(weights[link.index])
        num_bytes = link.sum_(vector, deadline)
        divide_(vector, sum(weights))
        return num_bytes


class BFloat16Wire:
    """Half the bytes: progress is rounded to bfloat16, summed in float32, and the mean is rounded again.

    Each member sums one part for all, in the order of the members, and sends it to the others. The error of
    the mean is at most 2⁻⁷ of the weighted mean of |progress|, for each element.
    """

    name = "bf16"

    def mean_(self, link: Link, vector: Tensor, weights: tuple[int, ...], deadline: float) -> int:
        part = -(-vector.numel() // link.size)
        sent = torch.zeros(part * link.size, dtype=torch.bfloat16, device=vector.device)
        sent[: vector.numel()].copy_(vector)
        received = torch.empty_like(sent)
        num_bytes = link.exchange(received, sent, deadline)
        total = torch.zeros(part, dtype=vector.dtype, device=vector.device)
        for weight, progress in zip(weights, received.view(link.size, part)):
            if weight:
                total.add_(progress.to(vector.dtype).mul_(weight))
        mean = divide_(total, sum(weights)).to(torch.bfloat16)
        num_bytes += link.gather(sent, mean, deadline)
        vector.copy_(sent[: vector.numel()])
        return num_bytes


WIRES: dict[str, type[FullWire] | type[BFloat16Wire]] = {"fp32": FullWire, "bf16": BFloat16Wire}
