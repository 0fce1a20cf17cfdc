"""A step function that runs the backward of the loss that it returns."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flodl.core import StepError
from flodl.engine import TrainStep

X, Y = torch.randn(8, 4), torch.randn(8, 2)


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def with_backward(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = mse(model, x, y)
    loss.backward(retain_graph=True)
    return loss


def new_step(step_fn, *layers: nn.Module, **settings) -> tuple[nn.Module, TrainStep]:
    model = nn.Sequential(nn.Linear(4, 2), *layers)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, tier="eager", **settings)
    return model, step


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_backward_that_retains_the_graph_is_an_error_before_the_first_update(accumulate) -> None:
    model, step = new_step(with_backward, nn.Dropout(0.5), accumulate=accumulate)
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(StepError, match=r"calls backward\(\) on the loss that it returns.*Remove backward"):
        step(X, Y)
    assert all(map(torch.equal, before, model.parameters()))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert (step.updates, step.is_between_updates) == (0, True)


def test_the_gradients_of_another_loss_are_added_as_in_a_plain_loop() -> None:
    def two_losses(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        mse(model, x[:3], y[:3]).backward()
        return mse(model, x[3:], y[3:])

    model, step = new_step(two_losses)
    mine = nn.Sequential(nn.Linear(4, 2))
    mine.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
    for _ in range(3):
        step(X, Y)
        optimizer.zero_grad()
        mse(mine, X[:3], Y[:3]).backward()
        mse(mine, X[3:], Y[3:]).backward()
        optimizer.step()
    assert all(map(torch.equal, mine.parameters(), model.parameters()))


def test_the_gradients_of_other_parameters_are_not_looked_at() -> None:
    other = nn.Linear(4, 2)

    def with_critic(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        mse(other, x, y).backward()
        return mse(model, x, y)

    _, step = new_step(with_critic)
    step(X, Y)
    step(X, Y)
    assert step.updates == 2


def test_gradients_of_zero_are_not_taken_for_a_second_backward() -> None:
    def flat(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        (model(x).sum() * 0).backward()
        return model(x).sum() * 0

    _, step = new_step(flat)
    step(X, Y)
    assert step.updates == 1
