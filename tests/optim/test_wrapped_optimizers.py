"""An object that wraps an optimizer is refused with what it is, and what to pass instead."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flodl import Trainer, TrainStep
from flodl.core import StepError, TrainError
from flodl.optim.wrapped_optimizers import wrapper_text


class Lookahead:
    def __init__(self, inner):
        self.inner = inner

    @property
    def param_groups(self):
        return self.inner.param_groups

    def step(self):
        self.inner.step()

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad(set_to_none)


class Delegating:
    """Passes on every attribute, also when it is called."""

    def __init__(self, inner):
        self.optimizer = inner

    def __getattr__(self, name):
        return getattr(self.__dict__["optimizer"], name)

    def __call__(self):
        self.optimizer.step()


class Several:
    def __init__(self, first):
        self.optimizers = {"first": first, "second": first}

    def step(self):
        for one in self.optimizers.values():
            one.step()


class Slots:
    __slots__ = ("param_groups",)

    def __init__(self, inner):
        self.param_groups = inner.param_groups

    def step(self): ...


EXPECTED = {
    Lookahead: "the optimizer is a Lookahead, which wraps an SGD in its attribute 'inner' and is not derived",
    Delegating: "the optimizer is a Delegating, which wraps an SGD in its attribute 'optimizer' and is not",
    Several: "the optimizer is a Several, which wraps 2 optimizers in its attribute 'optimizers' and is not",
    Slots: "the optimizer is a Slots, which is not derived from torch.optim.Optimizer",
}


def wrapped(kind, model: nn.Module):
    return kind(torch.optim.SGD(model.parameters(), lr=0.1))


def mse(model, x, y):
    return (model(x) - y).square().mean()


@pytest.mark.parametrize(("kind", "told"), EXPECTED.items())
def test_a_step_says_what_a_wrapper_is(kind, told) -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(StepError, match="expected") as caught:
        TrainStep(model, wrapped(kind, model), mse)
    assert str(caught.value).startswith(told)
    assert "Derive the class from torch.optim.Optimizer" in str(caught.value)


@pytest.mark.parametrize("is_built", [False, True])
@pytest.mark.parametrize(("kind", "told"), EXPECTED.items())
def test_a_trainer_says_it_too_also_if_a_function_returns_the_wrapper(kind, told, is_built) -> None:
    model = nn.Linear(2, 1)
    optimizer = (lambda groups: wrapped(kind, model)) if is_built else wrapped(kind, model)
    with pytest.raises(TrainError, match="expected") as caught:
        Trainer(model, mse, optimizer=optimizer, device="cpu")
    assert str(caught.value).startswith(told)


def test_other_objects_are_not_taken_for_wrappers() -> None:
    class Stepping(nn.Linear):
        def step(self): ...

    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    others = [
        optimizer,
        torch.optim.SGD,
        Lookahead,
        Stepping(2, 1),
        torch.optim.lr_scheduler.StepLR(optimizer, 1),
        [optimizer],
        None,
        "sgd",
    ]
    assert [wrapper_text(one) for one in others] == [""] * len(others)
