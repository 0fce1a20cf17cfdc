"""What a monitor records about the models and training steps it watches."""

import pytest
import torch
import torch._dynamo.eval_frame
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


def test_what_a_training_step_notes_about_its_batches_is_not_about_its_tier(monitor, recorded):
    model = nn.Linear(2, 1)
    step = TrainStep(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda model, x, y: model(x).mean() + y.mean(),
        tier="eager",
    )
    monitor.watch(step)
    step(torch.ones(4, 2), torch.ones(3))
    monitor.log(0, {"loss": 1.0})
    (note,) = recorded("note")
    assert (note["about"], note["level"], note["step"]) == ("samples", "info", 0)
    assert note["message"].startswith("the first tensor of a batch has 4 rows and others have 3")
    assert not any("rows" in tier["reason"] for tier in recorded("tier"))


def test_a_note_that_was_logged_as_a_warning_says_so(monitor, recorded, capsys, monkeypatch):
    # Broadcasts are not searched for in a process that has compiled something, as other tests do.
    monkeypatch.setattr(torch._dynamo.eval_frame, "cached_backends", {})
    model = nn.Linear(2, 1)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), broadcast, tier="eager")
    monitor.watch(step)
    step(torch.ones(4, 2), torch.ones(4))
    monitor.log(0, {"loss": 1.0})
    (note,) = recorded("note")
    assert (note["about"], note["level"]) == ("broadcast", "warning")
    assert capsys.readouterr().err.count(note["message"]) == 1


def broadcast(model, x, y):
    return (model(x) - y).square().mean()
