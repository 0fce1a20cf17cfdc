"""The distance between the gradients of two runs, for results that cannot be equal bit for bit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..device.tensors import same_bits, square_sum
from ..device.torch_flags import convolutions_without_tf32, matmul_tf32
from ..program.program import StepBody
from ..state.copies import copies_of

# The tolerance for the gradients of a compiled step, relative to the norm of eager's gradients.
TOLERANCE = {"fp32": 1e-3, "tf32": 5e-3, "bf16": 5e-2, "fp16": 5e-2}


# Where eager's own error is larger, a compiled step may be this many times as far from exact gradients.
EAGER_ERROR_FACTOR = 2.0

Gradients = list[Tensor | None]


def copy_gradients(body: StepBody) -> Gradients:
    """Return copies of the gradients of a step's parameters; in the memory of the host if they are large."""
    found = {str(at): p.grad.detach() for at, p in enumerate(body.parameters) if p.grad is not None}
    copies = copies_of(found)
    return [copies.get(str(at)) for at in range(len(body.parameters))]


def relative_difference(one: Gradients, other: Gradients, device: torch.device) -> float:
    """Return the distance between two sets of gradients relative to the norm of the first.

    It is computed on a device. It is infinite if they belong to different sets of parameters.
    """
    if [grad is None for grad in one] != [grad is None for grad in other]:
        return math.inf
    pairs = [(a, b) for a, b in zip(one, other) if a is not None and b is not None]
    apart = torch.stack([square_sum(a, b, device=device) for a, b in pairs]).sum().sqrt()
    size = torch.stack([square_sum(a, device=device) for a, _ in pairs]).sum().sqrt()
    return float(apart / size.clamp_min(1e-30))


def same_gradients(one: Gradients, other: Gradients) -> bool:
    """Return whether two sets of gradients are equal bit for bit."""
    pairs = zip(one, other, strict=True)
    return all(a is b if a is None or b is None else same_bits(a, b) for a, b in pairs)


@contextmanager
def full_float32() -> Iterator[None]:
    """Run matmuls and convolutions in full float32, and restore the flags."""
    with matmul_tf32(allowed=False), convolutions_without_tf32():
        yield
