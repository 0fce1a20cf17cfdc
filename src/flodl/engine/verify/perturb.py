"""Weights perturbed by one bit, which shows how far rounding alone can move the results of a step."""

from __future__ import annotations

import torch
from torch import Tensor

from ..program.program import StepBody


def perturb(body: StepBody, seed: int, by: float | None = None) -> None:
    """Move every parameter up or down by its last bit, or by a fraction of itself; the caller restores them.

    The batch is left alone: its numbers may be indices into a table.
    """
    for parameter in {id(parameter): parameter for parameter in body.parameters}.values():
        if parameter.is_floating_point() and parameter.layout is torch.strided:
            parameter.data.copy_(_perturbed(parameter.data, seed, by))


def _perturbed(numbers: Tensor, seed: int, by: float | None = None) -> Tensor:
    """Return the numbers, each one bit larger or smaller, or by a fraction of itself.

    >>> _perturbed(torch.ones(4), 0).sub(1).abs() <= torch.finfo(torch.float32).eps
    tensor([True, True, True, True])
    >>> _perturbed(torch.ones(2), 0, by=0.5).sub(1).abs()
    tensor([0.5000, 0.5000])
    """
    by = torch.finfo(numbers.dtype).eps if by is None else by
    # Its own generator, so that the random numbers of the training do not move.
    generator = torch.Generator(numbers.device).manual_seed(seed)
    signs = torch.randint(0, 2, numbers.shape, generator=generator, device=numbers.device)
    return numbers * (1 + by * (2 * signs - 1).to(numbers.dtype))
