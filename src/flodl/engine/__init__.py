"""The training step as one program: eager first, then captured, with the same numbers."""

from .capture.function import Captured, capture
from .device.gc_and_sync import calm_collector, no_waiting
from .device.memory import MemoryUse, forget_peaks, memory_use
from .report import StepReport
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
