"""A model that ran inside `preserve_state` is unchanged."""

import random

import numpy
import pytest
import torch
from torch import nn

from flodl.graph.profile.preserve import preserve_state


class Averages(nn.Module):
    """Writes to one tensor that is both a buffer and an attribute."""

    def __init__(self, shared: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", shared)
        self.view = shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean += 1
        return self.view + x


def test_originals_are_not_written_to_and_shared_tensors_stay_shared():
    model = Averages(torch.zeros(2))
    mean, version = model.mean, model.mean._version
    with preserve_state(model):
        assert model(torch.zeros(2)).tolist() == [1.0, 1.0]
        assert model.mean is model.view
    assert model.mean is model.view is mean
    assert mean._version == version


def test_everything_is_restored_after_an_error():
    model = nn.BatchNorm1d(2)
    buffers = dict(model.named_buffers())

    def fail() -> None:
        with preserve_state(model):
            model(torch.ones(3, 2))
            model.extra = 1
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fail()
    assert not hasattr(model, "extra")
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())
    assert model.num_batches_tracked == 0


def test_the_random_state_is_restored():
    def draw() -> tuple[float, float, float]:
        return random.random(), float(numpy.random.rand()), float(torch.rand(()))

    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    expected = draw()
    random.setstate(states[0])
    numpy.random.set_state(states[1])
    torch.set_rng_state(states[2])
    with preserve_state(nn.Identity()):
        draw()
    assert draw() == expected
