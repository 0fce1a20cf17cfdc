"""Carried values, removed temporarily and restored."""

import pytest
import torch
from torch import nn

from flodl import FlowBuilder
from flodl.graph import graph_state, load_carried_values, load_graph_state, without_carried_values

CPU = torch.device("cpu")


class Sum(nn.Module):
    def forward(self, x, before=None):
        return x if before is None else x + before


def graph():
    return FlowBuilder(Sum()).using("before").tag("before").build()


def nested():
    return FlowBuilder(graph()).through(nn.Identity()).build()


@pytest.mark.parametrize(
    "make", [graph, nested, lambda: nn.Sequential(graph()), lambda: nn.Sequential(nested(), graph())]
)
def test_every_graph_starts_without_carried_values_and_has_its_own_afterwards(make):
    model, twin = make(), make()
    one = torch.ones(2, 1)
    first, second = model(one), model(one)
    assert torch.equal(twin(one), first)
    with without_carried_values(model):
        assert torch.equal(model(one), first)
        with without_carried_values(model):
            model(torch.ones(5, 1))
    assert torch.equal(twin(one), second)
    assert torch.equal(model(one), twin(one))


def test_carried_values_are_restored_without_the_metrics():
    model = nn.Sequential(graph())
    model(torch.ones(2, 1))
    model[0].record("loss", 1.0)
    model[0].end_epoch()
    saved = graph_state(model)
    model(torch.full((2, 1), torch.nan))
    model[0].record("loss", 2.0)
    model[0].end_epoch()
    load_carried_values(model, saved, CPU)
    assert model(torch.ones(2, 1)).tolist() == [[2.0], [2.0]]
    assert list(model[0].trend("loss").values) == [1.0, 2.0]
    load_carried_values(model, {}, CPU)
    assert model(torch.ones(2, 1)).tolist() == [[3.0], [3.0]]
    load_graph_state(model, saved, CPU)
    assert model(torch.ones(2, 1)).tolist() == [[2.0], [2.0]]
