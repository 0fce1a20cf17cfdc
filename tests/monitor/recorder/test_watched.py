"""What a monitor records about the models and training steps it watches."""

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, TrainStep
from flodl.core import MonitorError
from flodl.monitor.snapshot import graph_svg


def test_a_graph_is_recorded_with_its_size_hash_and_picture(monitor, recorded):
    model = FlowBuilder(nn.Linear(2, 3)).through(nn.GELU()).label("net").build()
    monitor.watch(model)
    (graph,) = recorded("graph")
    assert (graph["label"], graph["parameters"]["total"]) == ("net", 9)
    assert graph["hash"] == model.structural_hash
    svg = graph_svg(monitor.run_dir)
    assert svg is not None
    assert svg.startswith("<svg")
    model.profile(torch.randn(4, 2))
    monitor.finish()
    assert "Forward:" in (graph_svg(monitor.run_dir) or "")


def test_any_module_can_be_watched_and_other_objects_raise(monitor, recorded):
    monitor.watch(nn.Linear(2, 3))
    (graph,) = recorded("graph")
    assert graph["label"] == "Linear"
    assert "path" not in graph
    with pytest.raises(MonitorError, match=r"cannot watch an object of type int\. Pass a Graph"):
        monitor.watch(3)


def test_a_training_step_reports_its_tier_with_the_reason_once(monitor, recorded):
    model = nn.Linear(2, 1)
    step = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda model, x: model(x).mean(),
        tier="eager",
    )
    monitor.watch(step)
    step(torch.ones(4, 2))
    monitor.log(0, {"loss": 1.0})
    monitor.log(1, {"loss": 1.0})
    tiers = recorded("tier")
    assert {tier["tier"] for tier in tiers} == {"eager"}
    assert all(tier["reason"] for tier in tiers)
    assert len(tiers) <= 2
