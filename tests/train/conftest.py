"""A small problem and a trainer for it."""

import pytest
import torch
from torch import nn

from flodl import Trainer


def loss_of(model, x, y):
    return nn.functional.mse_loss(model(x), y)


def small_model(*, dropout=0.0, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))


@pytest.fixture
def data():
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    return x, x.sum(1, keepdim=True)


@pytest.fixture
def make():
    """Return a function that makes a trainer of a small model; arguments override its settings."""

    def make_trainer(model=None, step_fn=loss_of, **settings):
        settings = {
            "optimizer": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
            "device": "cpu",
            "monitor": False,
            "tier": "eager",
            **settings,
        }
        return Trainer(small_model() if model is None else model, step_fn, **settings)

    return make_trainer


@pytest.fixture(autouse=True)
def quiet_randomness():
    """Restore the RNG state, so that other tests are not affected."""
    with torch.random.fork_rng(devices=[]):
        yield
