"""Errors of torch in an update say which parameter and which state, and what to change."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flodl.core import StepError
from flodl.engine import TrainStep
from flodl.engine.internals import body_of


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    kind = next(model.parameters()).dtype
    return nn.functional.mse_loss(model(x.to(kind)), y.to(kind))


def new_step(optimizer, step_fn=mse, **settings) -> tuple[nn.Module, TrainStep]:
    model = nn.Sequential(nn.Linear(4, 2))
    return model, TrainStep(model, optimizer(model.parameters()), step_fn, tier="eager", **settings)


X, Y = torch.randn(8, 4), torch.randn(8, 2)


@pytest.mark.parametrize(
    "optimizer",
    [torch.optim.AdamW, torch.optim.Adafactor, lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9)],
    ids=["AdamW", "Adafactor", "SGD"],
)
def test_the_state_of_an_optimizer_of_another_model_is_an_error_with_the_path(optimizer) -> None:
    _, step = new_step(optimizer)
    step(X, Y)
    saved = body_of(step).optimizer.state_dict()
    model = nn.Sequential(nn.Linear(4, 7))
    other = optimizer(model.parameters())
    other.load_state_dict(saved)
    step = TrainStep(model, other, mse, tier="eager")
    expected = (
        r"at '0\.\w+': .* in the update by \w+: the parameter has the shape \(7.*\), and its state '\w+' in "
        r"the optimizer \(2.*\)\. The state of the optimizer belongs to a different model\."
    )
    with pytest.raises(StepError, match=expected):
        step(X, torch.randn(8, 7))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.NAdam, torch.optim.Adafactor])
def test_a_model_converted_after_the_first_update_is_an_error_with_the_path(optimizer, dtype) -> None:
    model, step = new_step(optimizer)
    step(X, Y)
    model.to(dtype)
    name = str(dtype).removeprefix("torch.")
    expected = (
        rf"at '0\.weight': .* in the update by {optimizer.__name__}: the parameter is {name} on cpu, and its "
        r"state '\w+' in the optimizer is float32 on cpu\. .* Convert it before you create the optimizer"
    )
    with pytest.raises(StepError, match=expected) as caught:
        step(X, Y)
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_the_update_of_a_flush_is_explained_too() -> None:
    model, step = new_step(torch.optim.Adam, accumulate=2)
    step(X, Y)
    step(X, Y)
    model.double()
    step(X, Y)
    with pytest.raises(StepError, match="converted or moved after the first update"):
        step.flush()


def test_a_model_converted_after_the_first_update_trains_on_where_torch_can() -> None:
    model, step = new_step(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    step(X, Y)
    model.double()
    assert step(X, Y).dtype is torch.float64


def test_another_error_of_torch_in_an_update_gets_a_note() -> None:
    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            return torch.zeros(2) @ torch.zeros(3)

    _, step = new_step(lambda parameters: Broken(parameters, lr=0.1))
    with pytest.raises(RuntimeError, match="inconsistent tensor size") as caught:
        step(X, Y)
    assert caught.value.__notes__ == ["In the update by Broken; its parameters are float32 on cpu."]
    assert not isinstance(caught.value, StepError)
