"""Modules without a usable forward are explained: none, one without self, one that returns nothing."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flodl.engine import TrainStep
from flodl.engine.errors import StepFunctionError

X, LABELS = torch.rand(4, 3), torch.zeros(4, dtype=torch.long)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)


class Misspelled(Base):
    def foward(self, x):
        return self.layer(x)


class Indented(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return self.layer(x)


class Calls(nn.Module):
    """Calls another module."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.head = inner, nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.inner(x))


class WithoutSelf(Base):
    def forward(x):
        return x


class ShortSelf(nn.Module):
    def __init__(s):
        super().__init__()
        s.layer = nn.Linear(3, 2)

    def forward(s, x):
        return s.layer(x)


class WithoutReturn(Base):
    def forward(self, x):
        self.layer(x)


class SometimesReturns(Base):
    def forward(self, x):
        if x.shape[0] == 1:
            return self.layer(x)
        return None


def classes(model, x, y):
    return F.cross_entropy(model(x), y)


def message_of(model, step_fn=classes, batch=(X, LABELS)):
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), step_fn, tier="eager")
    with pytest.raises(StepFunctionError) as raised:
        step(*batch)
    return str(raised.value)


@pytest.mark.parametrize(
    ("model", "advice"),
    [
        (Misspelled(), "The class Misspelled has no method 'forward', but one named 'foward'. Rename it."),
        (Calls(Misspelled()), "no method 'forward', but one named 'foward'. Rename it."),
        (
            Indented(),
            "no method 'forward': 'forward' is defined inside __init__. Remove one level of its indent",
        ),
        (Base(), "The class Base has no method 'forward'. Add one: def forward(self, x)."),
        (
            Calls(nn.ModuleList([nn.Linear(3, 2)])),
            "A ModuleList contains modules and cannot be called. Call its modules one by one, or use",
        ),
    ],
)
def test_a_class_without_forward_is_named_with_a_near_name(model, advice):
    assert advice in message_of(model)


@pytest.mark.parametrize("model", [WithoutSelf(), Calls(WithoutSelf())])
def test_a_forward_without_self_is_named(model):
    told = message_of(model)
    assert "The forward of WithoutSelf has no self: its first parameter, 'x', receives the module." in told
    assert "Write def forward(self, x)." in told


def test_a_first_parameter_with_another_name_is_not_a_missing_self():
    told = message_of(ShortSelf(), lambda model, x, y: F.cross_entropy(model(x, x), y))
    assert "The model takes (x): call it as model(x)." in told


@pytest.mark.parametrize(
    "step_fn",
    [
        classes,
        lambda model, x, y: F.mse_loss(model(x), x),
        lambda model, x, y: model(x).mean(),
        lambda model, x, y: (model(x) - y).mean(),
    ],
)
def test_a_forward_that_returns_nothing_is_named(step_fn):
    told = message_of(WithoutReturn(), step_fn)
    assert "The forward of WithoutReturn, at test_forward_method.py:" in told
    assert "returns None: it lacks a return statement with a value." in told


def test_a_part_of_the_model_that_returns_nothing_is_named():
    assert "The forward of WithoutReturn, at test_forward" in message_of(Calls(WithoutReturn()))


def test_none_from_a_forward_that_may_return_a_value_is_explained():
    told = message_of(SometimesReturns())
    assert "If that is the output of the model, forward must return it in every case." in told
