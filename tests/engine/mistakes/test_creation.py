"""Attributes of a step that would have no effect, or that do not exist, raise an error with advice."""

import copy

import pytest
import torch
from torch import nn

from flodl import TrainStep
from flodl.core import StepError


def create(kind=TrainStep) -> TrainStep:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return kind(model, optimizer, lambda m, x: m(x).square().mean(), tier="eager")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("clipnorm", "Did you mean 'clip_norm'?"),
        ("accumulat", "Did you mean 'accumulate'?"),
        ("max_grad_norm", "Write clip_norm="),
        ("lr", "Set group['lr'] for each group"),
        ("clip_norm", "a TrainStep keeps what it was created with"),
        ("updates", "it is read-only"),
    ],
)
def test_an_assignment_without_effect_raises_with_advice(name, advice):
    with pytest.raises(StepError, match=rf"step\.{name} was assigned") as caught:
        setattr(create(), name, 1)
    assert advice in str(caught.value)


@pytest.mark.parametrize("name", ["label", "loss", "_clipnorm", "epoch"])
def test_attributes_of_the_user_can_be_assigned(name):
    step = create()
    setattr(step, name, "mine")
    assert getattr(step, name) == "mine"


def test_a_subclass_may_have_attributes_with_similar_names():
    class Mine(TrainStep):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.clipnorm = 1.0

    assert create(Mine).clipnorm == 1.0


def test_a_shallow_copy_counts_its_own_steps():
    step = create()
    step(torch.ones(3, 2))
    other = copy.copy(step)
    other(torch.ones(3, 2))
    assert (step.steps, step.updates, other.steps, other.updates) == (1, 1, 2, 2)
