"""`FlowBuilder`: from method calls to a frozen spec."""

from .builder import FlowBuilder
from .continuations import LoopBuilder, MapBuilder

__all__ = ["FlowBuilder", "LoopBuilder", "MapBuilder"]
