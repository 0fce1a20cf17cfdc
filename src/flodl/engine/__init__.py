"""The training step as one program: eager first, then captured, with the same numbers."""

from .capture import Captured, capture
from .events import StepReport
from .step import TrainStep

__all__ = ["Captured", "StepReport", "TrainStep", "capture"]
