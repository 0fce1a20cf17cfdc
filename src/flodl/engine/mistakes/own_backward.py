"""Notices a step function that runs the backward of the loss that it returns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flodl.core import StepError

from ..device.tensors import stacked_by_device

_TOLERANCE = 1e-3


def gradients_of(parameters: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return copies of the gradients that a step function has left, with their parameters."""
    return [
        (parameter, parameter.grad.clone())
        for parameter in parameters
        if parameter.grad is not None and not parameter.grad.is_sparse
    ]


def check_own_backward(before: Sequence[tuple[Tensor, Tensor]], share: float) -> None:
    """Raise if the backward of a step has added `share` times the gradients that were there before it.

    Gradients of another loss are fine: they are added, as in a plain loop. This waits for the device.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> weight.square().sum().backward()
    >>> before = gradients_of([weight])
    >>> weight.square().sum().backward()
    >>> check_own_backward(before, 1.0)
    Traceback (most recent call last):
    flodl.core.errors.StepError: the step function calls backward() on the loss that it returns, so its ...
    """
    sizes, differences = list[Tensor](), list[Tensor]()
    for parameter, old in before:
        if parameter.grad is None:
            return
        sizes.append(torch.linalg.vector_norm(old * share))
        differences.append(torch.linalg.vector_norm(parameter.grad - old * (1.0 + share)))
    size, difference = _sum(sizes), _sum(differences)
    if size > 0 and difference <= _TOLERANCE * size:
        raise StepError(
            "the step function calls backward() on the loss that it returns, so its gradients would count "
            "twice. Remove backward() and just return the loss: the step runs it."
        )


def _sum(numbers: Sequence[Tensor]) -> float:
    """Return the sum of numbers, with one wait for each device."""
    return sum(float(found.sum()) for found in stacked_by_device(one.double() for one in numbers))
