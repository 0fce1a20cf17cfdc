"""Parts that stay in evaluation mode while the rest trains: the mark that `freeze(eval_mode=True)` leaves."""

from __future__ import annotations

from torch import nn

_MARK = "_flodl_stilled"


def is_stilled(module: nn.Module) -> bool:
    """Say whether a module stays in evaluation mode when the graph around it is put into training."""
    return _MARK in module.__dict__


def mark_stilled(module: nn.Module, stilled: bool) -> None:
    """Let a module stay in evaluation mode from now on, or no longer; its mode itself is not changed."""
    if stilled:
        module.__dict__[_MARK] = True
    else:
        module.__dict__.pop(_MARK, None)
