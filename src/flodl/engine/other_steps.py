"""The training steps of this process: tensors trained by another one change without the program doing it."""

from __future__ import annotations

from itertools import chain
from typing import Any
from weakref import WeakSet

from torch import Tensor

# Any stands for TrainStep, whose module imports this one.
_steps: WeakSet[Any] = WeakSet()


def remember_step(step: Any) -> None:
    """Remember a step for as long as it lives."""
    _steps.add(step)


def trained_by_others(step: Any) -> list[Tensor]:
    """Return the parameters and buffers that other steps of this process have trained."""
    others = [one for one in list(_steps) if one is not step and one.steps]
    bodies = [one._body for one in others]
    return [
        tensor
        for body in bodies
        for tensor in chain(body.parameters, body.model.parameters(), body.model.buffers())
    ]
