"""The training steps of this process, and their parts.

Tensors that another step trains change without the program changing them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakSet

from torch import Tensor, nn
from torch.optim import Optimizer

# Any stands for TrainStep, whose module imports this one.
_steps: WeakSet[Any] = WeakSet()


class Parts(NamedTuple):
    """What a training step trains, how, and on what."""

    model: nn.Module
    optimizer: Optimizer
    step_fn: Callable[..., Any]


def parts_of(step: Any) -> Parts | None:
    """Return the model, the optimizer and the function of a `TrainStep`; None for anything else."""
    body = step._body if step in _steps else None
    return None if body is None else Parts(body.model, body.optimizer, body.step_fn)


def remember_step(step: Any) -> None:
    """Remember a step for as long as it lives."""
    _steps.add(step)


def sharing_gradients(calls: Any, parameter: Tensor) -> tuple[Any, bool] | None:
    """Return another step that clears the gradient of this parameter, and whether its optimizer has it too.

    `calls` are the optimizer calls that the asking step watches.
    """
    for one in list(_steps):
        body = one._body
        if body.updater.calls is calls or not one.steps:
            continue
        for tensors, is_trained in ((body.parameters, True), (body.others, False)):
            if any(tensor is parameter for tensor in tensors):
                return one, is_trained
    return None


def trained_by_others(step: Any) -> list[Tensor]:
    """Return the parameters and buffers that other steps of this process have trained."""
    others = [one for one in list(_steps) if one is not step and one.steps]
    bodies = [one._body for one in others]
    return [
        tensor
        for body in bodies
        for tensor in chain(body.parameters, body.model.parameters(), body.model.buffers())
    ]
