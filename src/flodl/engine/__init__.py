"""The training step as one program: eager first, then captured, with the same numbers."""

from .capture import Captured, capture
from .events import StepReport
from .hygiene import calm_collector, no_waiting
from .memory import MemoryUse, forget_peaks, memory_use
from .step import TrainStep

__all__ = [
    "Captured",
    "MemoryUse",
    "StepReport",
    "TrainStep",
    "calm_collector",
    "capture",
    "forget_peaks",
    "memory_use",
    "no_waiting",
]
