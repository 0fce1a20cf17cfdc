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


def test_names_that_would_be_exchanged_raise_and_change_nothing():
    theirs = {"out.weight": torch.ones(2), "inp.weight": torch.zeros(2)}
    model = {"inp.weight": torch.full((2,), 3.0), "out.weight": torch.full((2,), 4.0)}
    with pytest.raises(
        CheckpointError, match=r"'out\.weight' of the .* into 'inp\.weight', although .*Nothing"
    ):
        load_by_order(theirs, model)
    assert model["inp.weight"][0] == 3
    three = {"b.w": torch.ones(2), "c.w": torch.ones(2), "a.w": torch.ones(2)}
    with pytest.raises(CheckpointError, match="in another order"):
        load_by_order(three, {"a.w": torch.ones(2), "b.w": torch.ones(2), "c.w": torch.ones(2)})


def test_numbers_that_are_shifted_load_and_come_first_in_the_report():
    theirs = {name: torch.ones(2) for name in ("x.a", "y.a", "z.a", "v.a", "lin_0.a", "lin_1.a")}
    model = {name: torch.zeros(2) for name in ("m.a", "n.a", "o.a", "p.a", "lin_1.a", "lin_2.a")}
    report = load_by_order(theirs, model)
    assert report.remapped[0] == ("lin_1.a", "lin_2.a")
    assert len(report.remapped) == 6


def test_what_is_not_a_state_dict_raises():
    with pytest.raises(CheckpointError, match="the state is a str"):
        graph().load_state_dict_by_order("model.pt")


@pytest.mark.parametrize("stored", [None, [torch.ones(1)], nn.Linear(1, 1)])
def test_tensors_without_names_are_an_error(stored):
    with pytest.raises(CheckpointError, match=rf"state dict are an? {type(stored).__name__}. Pass"):
        load_by_order(stored, {})
    with pytest.raises(CheckpointError, match=rf"the model are an? {type(stored).__name__}. Pass tensors by"):
        load_by_order({}, stored)
