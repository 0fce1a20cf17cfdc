"""Weights that all moved by their last bit: what comes of that, any way of rounding may come to."""

from __future__ import annotations

import torch
from torch import Tensor

from ..program.program import StepBody


def perturb(body: StepBody, seed: int) -> None:
    """Move the parameters of a body by their last bit, up or down; whoever asks puts them back.

    The batch stays as it is: its numbers may stand for something else, such as places in a table.
    """
    for parameter in {id(parameter): parameter for parameter in body.parameters}.values():
        if parameter.is_floating_point() and parameter.layout is torch.strided:
            parameter.data.copy_(_moved(parameter.data, seed))


def _moved(numbers: Tensor, seed: int) -> Tensor:
    """Give numbers that are one bit larger or smaller.

    >>> _moved(torch.ones(4), 0).sub(1).abs() <= torch.finfo(torch.float32).eps
    tensor([True, True, True, True])
    """
    # One of its own, so that nobody's random numbers move.
    source = torch.Generator(numbers.device).manual_seed(seed)
    signs = torch.randint(0, 2, numbers.shape, generator=source, device=numbers.device)
    return numbers * (1 + torch.finfo(numbers.dtype).eps * (2 * signs - 1).to(numbers.dtype))
