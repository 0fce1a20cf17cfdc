"""Gradients averaged over ranks in every update, for synchronous data-parallel training."""

from .reducer import GradientReducer

__all__ = ["GradientReducer"]
