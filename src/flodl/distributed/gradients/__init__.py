"""Gradients averaged over ranks in every update, for synchronous data-parallel training."""

from .reducer import GradientReducer
from .team import TIMEOUT_S, GradientTeam

__all__ = ["TIMEOUT_S", "GradientReducer", "GradientTeam"]
