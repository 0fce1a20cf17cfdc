"""Loading the state dict of a plain model by order."""

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, Graph
from flodl.checkpoint import load_by_order
from flodl.core import CheckpointError


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Sequential(nn.Linear(8, 2)))


def graph() -> Graph:
    flow = FlowBuilder(nn.Linear(4, 8)).tag("stem").through(nn.BatchNorm1d(8)).through(nn.ReLU())
    return flow.through(nn.Linear(8, 2)).tag("head").build()


def test_a_graph_loads_a_plain_model_with_the_same_layers():
    model, other, x = graph().eval(), plain().eval(), torch.randn(3, 4)
    report = model.load_state_dict_by_order(other.state_dict())
    assert ("3.0.weight", "head.weight") in report.remapped
    assert report.is_complete
    assert torch.equal(model(x), other(x))


def test_the_model_itself_may_be_passed():
    model, other = graph(), plain()
    model.load_state_dict_by_order(other)
    assert torch.equal(model.head.bias, other[3][0].bias)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)),
            r"tensor 3 is '1.weight' of shape \(2, 8\).*'batchnorm1d_1",
        ),
        (
            nn.Linear(4, 8),
            "the state dict has 2 tensors, the model 9: the state dict has no more for 'batchn",
        ),
        (
            nn.Sequential(plain(), nn.Linear(2, 2)),
            "the state dict has 11 tensors, .* model has no more for '1.weight'",
        ),
    ],
)
def test_other_layers_raise_and_change_nothing(other, words):
    model = graph()
    before = model.head.weight.clone()
    with pytest.raises(CheckpointError, match=words):
        model.load_state_dict_by_order(other)
    assert torch.equal(model.head.weight, before)


def test_equal_shapes_with_different_last_names_raise():
    with pytest.raises(CheckpointError, match=r"tensor 1 is 'a\.bias'"):
        load_by_order({"a.bias": torch.ones(2)}, {"b.weight": torch.zeros(2)})


def test_what_is_not_a_state_dict_raises():
    with pytest.raises(CheckpointError, match="the state is a str"):
        graph().load_state_dict_by_order("model.pt")
