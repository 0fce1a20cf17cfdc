"""Training from the first batch to the last, through every interruption."""

from .average import AveragedWeights
from .hooks import EarlyStopping, Phase, ReduceOnPlateau
from .leaving import EXIT_CODE, Preempted
from .result import FitResult
from .trainer import Trainer

__all__ = [
    "EXIT_CODE",
    "AveragedWeights",
    "EarlyStopping",
    "FitResult",
    "Phase",
    "Preempted",
    "ReduceOnPlateau",
    "Trainer",
]
