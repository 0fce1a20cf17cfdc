"""Carried values, removed temporarily and restored."""

import pytest
import torch
from torch import nn

from flodl import FlowBuilder
from flodl.checkpoint import latest_bundle, read_bundle, save_bundle
from flodl.core import MetricError, StateError
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


LOSSES = [1.0, 0.5, 0.3, 0.3, 0.3, 0.3, 0.3]


def train_own_loop(model, epochs):
    """Return the epoch after which the loop stops."""
    for epoch in epochs:
        model.record("loss", LOSSES[epoch])
        model.end_epoch()
        if model.trend("loss").stalled(3, tol=1e-3):
            return epoch
    return None


def test_trends_of_an_own_loop_continue_after_a_resume(tmp_path):
    def make():
        return FlowBuilder(nn.Linear(4, 2)).build()

    stopped = train_own_loop(make(), range(7))
    model = make()
    train_own_loop(model, range(4))
    torch.save(graph_state(model), tmp_path / "graphs.pt")
    save_bundle(tmp_path / "run", 4, {"graphs": graph_state(model)})
    for state in (
        torch.load(tmp_path / "graphs.pt", weights_only=True),
        read_bundle(latest_bundle(tmp_path / "run"))["graphs"],
    ):
        resumed = make()
        load_graph_state(resumed, state)
        assert train_own_loop(resumed, range(4, 7)) == stopped
        table = resumed.export_trends(tmp_path / "trends.csv").read_text().split()
        assert table == ["epoch,loss", *(f"{n + 1},{LOSSES[n]:.8f}" for n in range(stopped + 1))]


def test_a_state_of_other_graphs_raises_and_changes_nothing():
    model = nn.Sequential(graph())
    model[0].record("loss", 1.0)
    model[0].end_epoch()
    with pytest.raises(StateError, match=r"has graphs at '', and the model at '0'. Nothing was loaded"):
        load_graph_state(model, graph_state(graph()))
    with pytest.raises(StateError, match="has graphs at no name, and the model at '0'"):
        load_graph_state(model, {})
    load_graph_state(model, {}, strict=False)
    with pytest.raises(MetricError, match="the saved metrics cannot be read"):
        load_graph_state(model, {"0": {**graph_state(model)["0"], "book": {}}})
    assert model[0].trend("loss").values == [1.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: graph_state({"loss": 1.0}), "graph_state got a dict. Pass the model"),
        (lambda: load_graph_state({}, graph()), "load_graph_state got a dict. Pass the model"),
        (lambda: load_graph_state(graph(), [1]), "the saved state of the graphs is a list. Pass the result"),
    ],
)
def test_arguments_of_another_type_raise(call, message):
    with pytest.raises(StateError, match=message):
        call()
