"""The durations and the history of epochs, also after a resume."""

import pytest
from torch import nn

from flodl import FlowBuilder
from flodl.core.log import set_verbosity, verbosity
from flodl.monitor import Monitor
from flodl.monitor.snapshot import snapshot


@pytest.fixture
def verbose():
    before = verbosity()
    set_verbosity("normal")
    yield
    set_verbosity(before)


def test_metrics_can_come_from_a_graph_or_from_pairs(monitor):
    model = FlowBuilder(nn.Linear(2, 2)).label("net").build()
    model.record("loss", 0.5)
    model.end_epoch()
    monitor.log(0, model)
    monitor.log(1, [("loss", 0.25)])
    assert [record["metrics"] for record in monitor.history] == [{"loss": 0.5}, {"loss": 0.25}]


def test_the_default_duration_is_the_time_since_the_last_epoch_without_setup(monitor):
    monitor._epochs._started_s -= 1000.0
    monitor.progress(0, 1, 10)
    monitor.log(0, {"loss": 1.0})
    monitor._epochs._started_s -= 50.0
    monitor.log(1, {"loss": 1.0})
    first, second = (record["duration"] for record in monitor.history)
    assert first < 10.0
    assert 50.0 <= second < 60.0


def test_the_eta_is_accurate_right_after_a_resume(tmp_path):
    with Monitor(10, tmp_path, console=False, resources=False, step_rate=None) as monitor:
        for epoch in range(4):
            monitor.log(epoch, {"loss": 1.0}, duration=5.0)
    with Monitor(10, tmp_path, console=False, resources=False, step_rate=None) as monitor:
        assert len(monitor.history) == 4
        monitor.log(3, {"loss": 0.5}, duration=5.0)
        assert monitor.history[-1]["eta"] == 30.0
        assert [record["epoch"] for record in monitor.history] == [1, 2, 3, 4]
        assert monitor.history[-1]["metrics"] == {"loss": 0.5}
    state = snapshot(tmp_path)
    assert state["status"]["num_starts"] == 2
    assert [record["metrics"]["loss"] for record in state["history"]] == [1.0, 1.0, 1.0, 0.5]


@pytest.mark.usefixtures("verbose")
def test_a_repeated_epoch_replaces_all_epochs_after_it(tmp_path, capsys):
    with Monitor(4, tmp_path, console=False, resources=False) as monitor:
        for epoch in range(4):
            monitor.log(epoch, {"loss": 1.0}, duration=1.0)
    assert capsys.readouterr().out == ""
    with Monitor(4, tmp_path, resources=False) as monitor:
        assert "continuing a journal with 4 epochs" in capsys.readouterr().out
        assert len(monitor.history) == 4
        monitor.log(0, {"loss": 9.0}, duration=1.0)
        monitor.log(1, {"loss": 8.0}, duration=1.0)
        assert [record["metrics"]["loss"] for record in monitor.history] == [9.0, 8.0]
    assert [record["metrics"]["loss"] for record in snapshot(tmp_path)["history"]] == [9.0, 8.0]
