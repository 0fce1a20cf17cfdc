"""A window whose numbers all moved by their last bit: what comes of that, any way of rounding may come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from .body import StepBody
from .runners import Micro


def nudged(body: StepBody, window: Sequence[Micro], seed: int) -> list[Micro]:
    """Move the parameters of a body by their last bit, up or down, and give the window with such batches.

    The parameters are written to: whoever asks puts them back.
    """
    for parameter in {id(parameter): parameter for parameter in body.parameters}.values():
        if _is_rounded(parameter):
            parameter.data.copy_(_moved(parameter.data, seed))

    def moved(leaf: Tensor) -> Tensor:
        return _moved(leaf, seed) if _is_rounded(leaf) else leaf

    return [replace(micro, batch=tree_map_only(Tensor, moved, micro.batch)) for micro in window]


def _is_rounded(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.layout is torch.strided and not tensor.is_nested


def _moved(tensor: Tensor, seed: int) -> Tensor:
    """Give a tensor whose numbers are one bit larger or smaller.

    >>> _moved(torch.ones(4), 0).sub(1).abs() <= torch.finfo(torch.float32).eps
    tensor([True, True, True, True])
    """
    # One of its own, so that nobody's random numbers move.
    source = torch.Generator(tensor.device).manual_seed(seed)
    signs = torch.randint(0, 2, tensor.shape, generator=source, device=tensor.device)
    return tensor * (1 + torch.finfo(tensor.dtype).eps * (2 * signs - 1).to(tensor.dtype))
