"""Training from the first batch to the last, through every interruption."""

from .callbacks.standard import EarlyStopping, Phase, ReduceOnPlateau
from .evaluation.class_metrics import ClassAccuracy, ClassF1, ConfusionMatrix
from .evaluation.ema import AveragedWeights
from .faults.signals import Preempted
from .find_lr.result import FindLrResult
from .result import FitResult
from .trainer import Trainer

__all__ = [
    "AveragedWeights",
    "ClassAccuracy",
    "ClassF1",
    "ConfusionMatrix",
    "EarlyStopping",
    "FindLrResult",
    "FitResult",
    "Phase",
    "Preempted",
    "ReduceOnPlateau",
    "Trainer",
]
