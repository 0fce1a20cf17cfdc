"""The training steps of this process: tensors that another one trains change without the program's doing."""

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
