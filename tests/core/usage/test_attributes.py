"""Assigning what was fixed at the creation raises; subclasses and other attributes are not affected."""

import copy

import pytest
import torch
from torch import nn

from flodl import Loader, TrainStep
from flodl.core import DataError, StepError


def loss_of(model, x, y):
    return nn.functional.mse_loss(model(x), y)


def make_step(kind=TrainStep):
    model = nn.Linear(2, 1)
    return kind(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("lr", r"optimizer.param_groups"),
        ("clip_norm", r"Create a new TrainStep\(…, clip_norm=…\)"),
        ("accumulate", r"Create a new TrainStep\(…, accumulate=…\)"),
        ("tier", r"Create a new TrainStep\(…, tier=…\)"),
        ("model", r"model.load_state_dict"),
        ("updates", r"it is read-only: How many updates there were"),
    ],
)
def test_an_assigned_option_of_a_step_is_an_error(name, advice):
    step = make_step()
    with pytest.raises(StepError, match=rf"step.{name} was assigned, but .*{advice}") as caught:
        setattr(step, name, 1)
    assert isinstance(caught.value, AttributeError)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("shuffle", r"Create a new Loader\(…, shuffle=…\)"),
        ("batch_size", r"Create a new Loader\(…, batch_size=…\)"),
        ("seed", r"Create a new Loader\(…, seed=…\)"),
        ("epoch", r"it is read-only: Call loader.set_epoch"),
    ],
)
def test_an_assigned_option_of_a_loader_is_an_error(name, advice):
    loader = Loader(torch.arange(4), 2, seed=3)
    with pytest.raises(DataError, match=rf"loader.{name} was assigned, but .*{advice}"):
        setattr(loader, name, 1)
    assert (loader.batch_size, loader.seed, loader.drop_last) == (2, 3, False)
    assert loader.device == torch.device("cpu")


def test_reading_an_option_says_where_it_is():
    step = make_step()
    with pytest.raises(StepError, match=r"no attribute 'clip_norm'. It is step.settings.clip_norm"):
        _ = step.clip_norm
    assert not hasattr(step, "lr")
    assert getattr(Loader(torch.arange(4), 2), "sampler", None) is None


def test_an_attribute_of_the_user_and_of_a_subclass_is_allowed():
    class Mine(TrainStep):
        def __init__(self, model, optimizer, step_fn):
            super().__init__(model, optimizer, step_fn)
            self.model, self.lr = model, 0.5

    step = make_step(Mine)
    assert (type(step.model), step.lr) == (nn.Linear, 0.5)
    step.lr = 0.25
    assert step.lr == 0.25
    step.label = "mine"
    assert copy.deepcopy(make_step()).updates == 0
