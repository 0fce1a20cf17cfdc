"""The rivals: each trains the same model on the same batches in its own way."""

from .registry import RIVALS, Kind
from .runner import Runner, Unavailable

__all__ = ["RIVALS", "Kind", "Runner", "Unavailable"]
