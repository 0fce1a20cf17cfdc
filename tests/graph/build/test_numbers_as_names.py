"""A graph or a value may be called by a number, so that layers have paths such as `encoder.layer.0`."""

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, GraphError


def layers():
    flow = FlowBuilder()
    for index in range(3):
        layer = FlowBuilder(nn.Linear(4, 4)).through(nn.ReLU()).label(str(index)).build()
        flow.through(layer).tag(str(index))
    return FlowBuilder(flow.label("layer").build()).label("encoder").build()


def test_numbers_are_labels_tags_and_keys():
    model = FlowBuilder(layers()).build()
    out = model(torch.randn(2, 4))
    assert torch.equal(model.tagged("encoder.layer.2"), out)
    assert next(iter(model.state_dict())) == "encoder.layer.0.linear_1.weight"
    model.freeze("encoder.layer.1")
    assert [model.is_frozen(f"encoder.layer.{index}") for index in range(3)] == [False, True, False]
    assert len(model.parameters_at("encoder.layer.*")) == 6


def test_a_value_called_by_a_number_can_be_used():
    def add_first(value, **refs):
        return value + refs["0"]

    model = FlowBuilder(nn.Identity()).tag("0").through(torch.neg).through(add_first).using("0").build()
    assert torch.equal(model(torch.ones(2)), torch.zeros(2))


@pytest.mark.parametrize("name", ["00", "1a", "-1", "1.5", "٣"])
def test_other_names_that_start_with_a_digit_are_refused(name):
    with pytest.raises(GraphError, match=r"Use letters, digits"):
        FlowBuilder(nn.Linear(2, 2)).tag(name)
