"""What to add to attention scores to hide tokens, in the type that attention runs in."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels.constant import constant


def attention_dtype(hidden: Tensor) -> torch.dtype:
    """Return the type that attention runs in, which autocast may lower."""
    device = hidden.device.type
    if _has_autocast(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return hidden.dtype


@constant
def _has_autocast(device: str) -> bool:
    """Return whether a kind of device has autocast; torch 2.11 cannot trace the question."""
    return torch.amp.is_autocast_available(device)


def lowest(dtype: torch.dtype) -> float:
    """Return a number that hides a token and stays finite if it is cast to bfloat16."""
    return max(torch.finfo(dtype).min, torch.finfo(torch.bfloat16).min)


def hiding_bias(hides: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what to add to attention scores: the lowest number where a token is hidden, and 0 elsewhere."""
    return torch.zeros(hides.shape, dtype=dtype, device=hides.device).masked_fill(hides, lowest(dtype))
