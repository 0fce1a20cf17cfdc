"""Training from the first batch to the last, through every interruption."""

from .average import AveragedWeights
from .hooks import EarlyStopping, Phase, ReduceOnPlateau
from .leaving import Preempted
from .result import FitResult
from .trainer import Trainer

__all__ = [
    "AveragedWeights",
    "EarlyStopping",
    "FitResult",
    "Phase",
    "Preempted",
    "ReduceOnPlateau",
    "Trainer",
]
