"""Targets and indices that a loss or an embedding does not take: the error says what they should be."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flodl.engine import TrainStep
from flodl.engine.errors import StepFunctionError

X, LABELS = torch.rand(8, 4), torch.arange(8) % 3


def classes(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def binary(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy(model(x).sigmoid(), y)


def with_logits(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(model(x), y)


@pytest.mark.parametrize(
    ("step_fn", "targets", "advice"),
    [
        (classes, F.one_hot(LABELS, 3), "For one-hot targets, pass y.argmax(1) or y.float()."),
        (classes, LABELS - 1, "at least 0, but this one is -1. If -1 marks targets that do not count, pass"),
        (classes, LABELS - 1, "ignore_index=-1 to the loss; if the labels start at -1,"),
        (classes, LABELS + 1, "must be less than the number of classes"),
        (with_logits, torch.ones(8, 3, dtype=torch.bool), "but y is bool: pass y.float()."),
        (with_logits, torch.ones(8), "If y has class ids, pass integers, y.long(), to cross_entropy"),
        (binary, torch.full((8, 3), 4.0), "from 0 to 1. y has values from 4 to 4. Map labels of -1 and 1"),
    ],
)
def test_targets_that_a_loss_does_not_take_are_described(step_fn, targets, advice: str) -> None:
    model = nn.Linear(4, 3)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, tier="eager")
    with pytest.raises(StepFunctionError) as raised:
        step(X, targets)
    assert advice in str(raised.value)
    assert "order of the arguments" not in str(raised.value)


@pytest.mark.parametrize("index", [-1, 10])
def test_an_index_that_an_embedding_does_not_have_is_shown_with_the_others(index: int) -> None:
    model = nn.Sequential(nn.Embedding(10, 3), nn.Flatten())
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), classes, tier="eager")
    tokens = torch.full((8, 1), index)
    with pytest.raises(StepFunctionError, match=f"those of x are {index} to {index}, those of y are 0 to 2"):
        step(tokens, LABELS)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_device_that_failed_gets_advice(accumulate: int) -> None:
    told = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported"

    def fail(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        classes(model, x, y)
        # Not raised by a statement of this function, just as torch's own errors are not.
        return (_ for _ in ()).throw(torch.AcceleratorError(told))

    model = nn.Linear(4, 3)
    step = TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.1), fail, tier="eager", accumulate=accumulate
    )
    with pytest.raises(
        StepFunctionError, match=r"device-side assert triggered, in the step function fail.*CPU"
    ):
        step(X, LABELS)
