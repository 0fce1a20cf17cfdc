"""Learning rate schedules, applying them to torch optimizers, gradient clipping, parameter groups.

Importing this package does not import torch; the functions that need tensors do.
"""

from .clipping import clip_grad_norm, clip_grad_value, gradient_values
from .cycles import CyclicLR, OneCycleLR
from .decay import CosineScheduler, ExponentialLR, MultiStepLR, StepDecay
from .groups import groups
from .plateau import PlateauScheduler
from .schedule import Schedule, StepSchedule
from .schedule_bridge import ScheduleBridge, apply
from .warmup import WarmupScheduler

__all__ = [
    "CosineScheduler",
    "CyclicLR",
    "ExponentialLR",
    "MultiStepLR",
    "OneCycleLR",
    "PlateauScheduler",
    "Schedule",
    "ScheduleBridge",
    "StepDecay",
    "StepSchedule",
    "WarmupScheduler",
    "apply",
    "clip_grad_norm",
    "clip_grad_value",
    "gradient_values",
    "groups",
]
