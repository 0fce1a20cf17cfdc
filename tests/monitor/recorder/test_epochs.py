"""The durations and the history of epochs, also after a resume."""

import pytest
from torch import nn

from flodl import FlowBuilder
from flodl.core.log import set_verbosity, verbosity
from flodl.monitor import Monitor, read
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


def test_the_eta_of_a_run_that_replaces_another_is_that_of_its_own_epochs(tmp_path):
    def log_epochs(durations):
        with Monitor(4, tmp_path, console=False, resources=False, step_rate=None) as monitor:
            for epoch, duration in enumerate(durations):
                monitor.log(epoch, {"loss": 1.0}, duration=duration)
            return [record["eta"] for record in monitor.history]

    log_epochs([100.0] * 4)
    assert log_epochs([1.0, 1.0]) == [3.0, 2.0]
    assert snapshot(tmp_path)["history"][-1]["eta"] == 2.0


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
def test_a_journal_with_one_epoch_is_reported_in_the_singular(tmp_path, capsys):
    with Monitor(2, tmp_path, console=False, resources=False) as monitor:
        monitor.log(0, {"loss": 1.0}, duration=1.0)
    with Monitor(2, tmp_path, resources=False):
        assert "continuing a journal with 1 epoch:" in capsys.readouterr().out


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


def test_metrics_of_an_epoch_that_is_logged_twice_are_merged(monitor, recorded):
    monitor.log(0, {"train.loss": 0.5}, duration=3.0)
    monitor.log(0, {"val.loss": 0.75})
    monitor.log(1, {"train.loss": 0.25}, duration=1.0)
    first, second = monitor.history
    assert first["metrics"] == {"train.loss": 0.5, "val.loss": 0.75}
    assert second["metrics"] == {"train.loss": 0.25}
    assert 3.0 <= first["duration"] < 4.0
    monitor.finish()
    assert [record["metrics"] for record in snapshot(monitor.run_dir)["history"]] == [
        first["metrics"],
        second["metrics"],
    ]
    assert recorded("alert") == []


def test_a_metric_that_is_logged_twice_with_different_values_is_reported_once(monitor, recorded):
    for epoch in range(2):
        monitor.log(epoch, {"loss": 0.5, "same": 1.0, "nan": float("nan")})
        monitor.log(epoch, {"loss": 0.25, "same": 1.0, "nan": float("nan")})
    messages = [data["message"] for data in recorded("alert") if "nan" not in data["message"]]
    (message,) = messages
    assert message.startswith("loss of epoch 0 (counted from 0) was logged twice, as 0.5000 and as 0.2500")
    assert monitor.history[0]["metrics"]["loss"] == 0.25


def test_epochs_that_start_again_in_one_process_are_reported_once(monitor, recorded):
    for _ in range(3):
        for epoch in range(3):
            monitor.log(epoch, {"loss": 0.5})
    (alert,) = recorded("alert")
    assert alert["message"].startswith("epoch 0 was logged again after epoch 2 (counted from 0)")
    assert "separate Monitor" in alert["message"]


def test_an_epoch_that_is_logged_late_for_the_first_time_replaces_nothing(monitor, recorded, tmp_path):
    for epoch in (2, 0):
        monitor.log(epoch, {"loss": float(epoch)})
    (alert,) = recorded("alert")
    assert alert["message"].startswith("epoch 0 was logged for the first time after epoch 2 (counted from 0)")
    assert "replaces" not in alert["message"]
    assert [record["epoch"] for record in monitor.history] == [1, 3]
    table = monitor.export_csv(tmp_path / "epochs.csv").read_text()
    assert [line.split(",")[0] for line in table.splitlines()[1:]] == ["1", "3"]


def test_an_epoch_that_is_logged_again_removes_the_later_ones_as_the_alert_says(monitor, recorded):
    for epoch in (0, 1, 2, 1):
        monitor.log(epoch, {"loss": float(epoch)})
    (alert,) = recorded("alert")
    assert "replaces the earlier one and all epochs after it" in alert["message"]
    assert [record["epoch"] for record in monitor.history] == [1, 2]
    monitor.log(2, {"loss": 5.0})  # was removed, so it is new
    assert len(recorded("alert")) == 1


def test_the_highest_epoch_logged_again_after_an_earlier_one_replaces_only_itself(monitor, recorded):
    for epoch in (2, 0, 2):
        monitor.log(epoch, {"loss": float(epoch)})
    assert "it replaces the earlier one and nothing else" in recorded("alert")[-1]["message"]
    assert [record["epoch"] for record in monitor.history] == [1, 3]


def test_only_metrics_that_a_graph_closed_since_the_last_log_are_logged(monitor, recorded):
    model = FlowBuilder(nn.Linear(2, 2)).build()
    model.record("loss", 1.0)
    model.record("rare", 2.0)
    model.end_epoch()
    monitor.log(0, model)
    model.record("loss", 1.0)
    model.end_epoch()
    monitor.log(1, model)
    assert [record["metrics"] for record in monitor.history] == [{"loss": 1.0, "rare": 2.0}, {"loss": 1.0}]
    assert recorded("alert") == []


def test_every_row_that_a_graph_closed_before_the_first_log_is_logged(monitor, recorded):
    model = FlowBuilder(nn.Linear(2, 2)).build()
    for epoch in range(2):
        model.record("train", epoch + 1.0)
        model.end_epoch()
        model.record("val", epoch + 2.0)
        model.end_epoch()
        monitor.log(epoch, model)
    assert [record["metrics"] for record in monitor.history] == [
        {"train": 1.0, "val": 2.0},
        {"train": 2.0, "val": 3.0},
    ]
    assert recorded("alert") == []


def test_metrics_that_a_graph_closed_before_the_monitor_was_created_are_not_logged(tmp_path):
    model = FlowBuilder(nn.Linear(2, 2)).build()
    for name in ("pretraining", "loss"):
        model.record(name, 1.0)
        model.end_epoch()
    with Monitor(2, tmp_path, console=False, resources=False) as before:
        before.log(0, model)
    with Monitor(2, console=False, resources=False) as monitor:
        model.record("loss", 0.5)
        model.end_epoch()
        model.record("val", 0.75)
        model.end_epoch()
        monitor.log(0, model)
    assert before.history[0]["metrics"] == {}
    (alert,) = (entry.event.data["message"] for entry in read(tmp_path) if entry.event.kind == "alert")
    assert alert.endswith("Metrics closed before the monitor was created are not logged.")
    assert monitor.history[0]["metrics"] == {"loss": 0.5, "val": 0.75}


def test_flushed_metrics_of_a_graph_are_logged_without_end_epoch(monitor, recorded):
    model = FlowBuilder(nn.Linear(2, 2)).build()
    for epoch in range(2):
        model.record("loss", epoch + 1.0)
        model.flush()
        monitor.log(epoch, model)
    assert [record["metrics"] for record in monitor.history] == [{"loss": 1.0}, {"loss": 2.0}]
    assert recorded("alert") == []


def test_a_graph_without_new_metrics_is_reported_once(monitor, recorded):
    model = FlowBuilder(nn.Linear(2, 2)).build()
    for epoch in range(3):
        model.record("loss", 1.0)
        monitor.log(epoch, model)
    (alert,) = recorded("alert")
    assert alert["message"].startswith("the graph has no new metrics for epoch 1.")
    assert "end_epoch() before" in alert["message"]


def test_an_epoch_after_the_last_one_is_reported_once(monitor, recorded):
    for epoch in range(5):
        monitor.log(epoch, {"loss": 1.0})
    (alert,) = recorded("alert")
    assert alert["message"] == (
        "epoch 3 was logged, but the last of 3 epochs is epoch 2. Count epochs from 0, as range does."
    )
