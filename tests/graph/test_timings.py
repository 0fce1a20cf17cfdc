"""The times of tagged nodes over the epochs."""

import copy

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, Graph, Trainer
from flodl.core import MetricError, PathError, PictureError
from flodl.graph.run_state import graph_state, load_graph_state

X = torch.randn(8, 4)


@pytest.fixture
def model() -> Graph:
    inner = FlowBuilder(nn.Linear(4, 4)).tag("deep").label("inner").build()
    flow = FlowBuilder(nn.Linear(4, 4)).tag("stem").through(inner)
    return flow.split([nn.Linear(4, 4), nn.Linear(4, 4)]).tag_group("head").merge("add").build()


def test_a_time_per_tag_and_epoch_is_kept(model):
    for _ in range(3):
        profile = model.profile(X, repeats=1)
        model.collect_timings()
        model.end_epoch()
    trend = model.timing_trend("stem")
    assert len(trend) == 3
    assert trend.latest == profile.seconds("stem")
    assert sorted(model.timing_trends()) == ["head_0", "head_1", "stem"]


def test_tags_groups_and_paths_of_subgraphs_can_be_named(model):
    model.collect_timings("head", "inner.deep", example=X)
    model.flush_timings()
    assert sorted(model.timing_trends()) == ["head_0", "head_1", "inner.deep"]
    assert len(model.timing_trends("head")) == 2
    model.reset_timing_trend("head")
    assert [*model.timing_trends()] == ["inner.deep"]


def test_timings_are_not_metrics(model):
    model.record("loss", 1.0)
    model.collect_timings("stem", example=X)
    model.end_epoch()
    assert [*model.latest_metrics()] == ["loss"]
    assert model.timing_trend("stem").epochs == model.trend("loss").epochs


def test_timings_that_skip_an_epoch_keep_its_number(model):
    model.end_epoch()
    model.collect_timings("stem", example=X)
    model.end_epoch()
    assert [*model.timing_trend("stem").epochs] == [1]


def test_a_hook_may_collect_after_the_epoch(model):
    trainer = Trainer(
        model,
        lambda m, x, y: (m(x) - y).square().mean(),
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.01),
        hooks=[Collect(model)],
        monitor=False,
        device="cpu",
    )
    trainer.fit((X, X), epochs=2, batch_size=4)
    assert [*model.timing_trend("stem").epochs] == [0, 1]


class Collect:
    def __init__(self, model: Graph) -> None:
        self.model = model

    def on_epoch_end(self) -> None:
        self.model.collect_timings("stem", example=X[:2])


def test_they_are_exported(model, tmp_path):
    model.collect_timings("stem", example=X)
    model.end_epoch()
    assert model.export_timing_trends(tmp_path / "t.csv").read_text().startswith("epoch,stem\n1,")
    assert "seconds per node" in model.plot_timings_html(tmp_path / "t.html", ["stem"]).read_text()


def test_they_are_copied_and_saved_with_a_run(model):
    model.collect_timings("stem", example=X)
    model.end_epoch()
    assert len(copy.deepcopy(model).timing_trend("stem")) == 1
    state = graph_state(model)
    model.reset_timing_trend()
    load_graph_state(model, state, torch.device("cpu"))
    assert len(model.timing_trend("stem")) == 1


def test_mistakes_are_errors(model):
    with pytest.raises(PictureError, match=r"collect_timings has no times.*model\.profile\(x\)"):
        model.collect_timings()
    with pytest.raises(PathError, match=r"no row 'stm'.*'stem'"):
        model.collect_timings("stm", example=X)
    with pytest.raises(MetricError, match="has no tag with a time"):
        FlowBuilder(nn.Linear(4, 4)).build().collect_timings(example=X)
    model.collect_timings("stem")
    with pytest.raises(MetricError, match=r"'stm'.*'stem'"):
        model.timing_trend("stm")
