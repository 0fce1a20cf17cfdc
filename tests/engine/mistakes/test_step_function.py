"""A step function that cannot be called with the model and the batch raises an error that says how to."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from flodl.core import StepError
from flodl.engine import TrainStep

X, Y = torch.ones(8, 4), torch.zeros(8, 2)


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def new_step(step_fn=mse, **settings) -> TrainStep:
    model = nn.Linear(4, 2)
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, tier="eager", **settings)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (((X, Y),), r"mse\(model, x, y\).*1 argument \(\(float32.*Write step\(\*batch\), or step\(x, y\)"),
        (([X, Y],), r"missing a required argument: 'y'. Write step\(\*batch\)"),
        (({"x": X, "y": Y},), r"\{'x': float32 \[8, 4\].*step\(x, y\), or write def step_fn\(model, batch\)"),
        ((), r"the model and nothing else.*Pass the batch: step\(x, y\)"),
        ((X, Y, Y), r"3 arguments.*too many positional arguments.*in order, what you pass"),
    ],
)
def test_a_batch_with_other_parts_than_the_function_takes_raises(batch, message: str) -> None:
    step = new_step()
    with pytest.raises(StepError, match=message) as raised:
        step(*batch)
    assert isinstance(raised.value, TypeError)


@pytest.mark.parametrize(
    ("step_fn", "message"),
    [
        (nn.MSELoss(), "the step function is MSELoss, a loss. It takes the model and the batch"),
        (nn.MSELoss, "the step function is the class MSELoss"),
        (
            nn.CrossEntropyLoss(),
            r"criterion = CrossEntropyLoss\(…\); step_fn = lambda model, x, y: criterion\(model\(x\), y\)",
        ),
        (
            nn.functional.cross_entropy,
            r"the step function is cross_entropy, a loss.*nn.functional.cross_entropy\(model\(x\), y\)",
        ),
        (nn.Linear(4, 2), "the step function is Linear, of torch.nn"),
    ],
)
def test_a_loss_or_a_class_as_the_step_function_raises_at_once(step_fn, message: str) -> None:
    with pytest.raises(StepError, match=message):
        new_step(step_fn)


def test_the_model_as_the_step_function_raises_at_once() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

    model = Own()
    with pytest.raises(StepError, match="the step function is the model itself"):
        TrainStep(model, torch.optim.SGD(model.parameters()), model)


def test_step_functions_of_many_kinds_are_accepted() -> None:
    class Method:
        def loss(self, model, x, y):
            return mse(model, x, y)

        __call__ = loss

    class Module(nn.Module):
        def forward(self, model, x, y):
            return mse(model, x, y)

    for step_fn in (Method(), Method().loss, Module(), functools.partial(mse), lambda *parts: mse(*parts)):
        step = new_step(step_fn)
        step(X, Y)
        with pytest.raises((StepError, TypeError)):
            step(X)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda loss: None, "returned None.*did not reach its return statement, or what it returns is None"),
        (lambda loss: loss.item(), r"a float.*without .item\(\)"),
        (lambda loss: (loss, 1, 2), "a tuple.*It returned 3 items"),
        (lambda loss: {"loss": loss}, "a dict.*the loss first"),
        (lambda loss: loss.expand(3), r"shape \(3,\).*return loss.mean\(\)"),
        (lambda loss: (loss, loss), r"second item.* is a Tensor.*\(loss, \{name: value\}\)"),
        (lambda loss: loss.detach(), r"no gradient.*without .detach\(\)"),
        (lambda loss: (loss > 0).sum(), "no gradient, because it is torch.int64"),
    ],
)
def test_what_cannot_be_a_loss_says_what_to_return(returned, message: str) -> None:
    step = new_step(lambda model, x, y: returned(mse(model, x, y)))
    with pytest.raises(StepError, match=message):
        step(X, Y)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_step_inside_no_grad_says_so(mode) -> None:
    step = new_step()
    with mode(), pytest.raises(StepError, match=r"was called inside torch.no_grad\(\)"):
        step(X, Y)


def test_a_step_function_that_cuts_the_gradient_is_not_blamed_on_the_caller() -> None:
    step = new_step(torch.no_grad()(mse))
    with pytest.raises(StepError, match=r"outside torch.no_grad\(\), without"):
        step(X, Y)


@pytest.mark.parametrize("name", ["clip_norm", "clip_value"])
def test_a_limit_that_is_true_raises(name: str) -> None:
    with pytest.raises(StepError, match=f"{name}=True. Pass a limit above zero"):
        new_step(**{name: True})


def test_mixed_precision_with_half_precision_weights_raises() -> None:
    model = nn.Linear(4, 2).half()
    with pytest.raises(StepError, match=r"float16 parameters.*Remove model.half\(\)"):
        TrainStep(model, torch.optim.SGD(model.parameters()), mse, precision="fp16")
