"""How close two runs of one step came, where bits cannot be asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from .body import StepBody

# How far the gradients of a fused step may be from eager's, relative to their norm.
TOLERANCE = {"fp32": 1e-3, "tf32": 5e-3, "bf16": 5e-2, "fp16": 5e-2}


def gradients(body: StepBody) -> list[Tensor | None]:
    """Copy the gradients that are there."""
    return [None if p.grad is None else p.grad.detach().clone() for p in body.parameters]


def gradient_difference(
    eager: list[Tensor | None], other: list[Tensor | None], tolerance: float
) -> str | None:
    """Say how far two sets of gradients are apart, where that is further than the tolerance."""
    if [grad is None for grad in eager] != [grad is None for grad in other]:
        return "another set of parameters gets gradient"
    pairs = [(a.double(), b.double()) for a, b in zip(eager, other) if a is not None and b is not None]
    apart = torch.stack([(a - b).square().sum() for a, b in pairs]).sum().sqrt()
    size = torch.stack([a.square().sum() for a, _ in pairs]).sum().sqrt()
    relative = float(apart / size.clamp_min(1e-30))
    return None if relative <= tolerance else f"the gradients are off by {relative:.2g} of their norm"
