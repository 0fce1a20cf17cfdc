"""Step metrics: which values are recorded, how their steps are numbered, and which are invalid."""

import math

import pytest
import torch

from flodl.core import MetricError, MonitorError
from flodl.monitor import Monitor, read
from flodl.monitor.recorder.steps import StepSampler
from flodl.monitor.snapshot import snapshot


@pytest.fixture
def slow(tmp_path):
    created = Monitor(3, tmp_path / "slow", console=False, resources=False, step_rate=0.001)
    yield created
    created.close()


@pytest.fixture
def every(tmp_path):
    created = Monitor(3, tmp_path / "every", console=False, resources=False, step_rate=None)
    yield created
    created.close()


def recorded_by(monitor, kind):
    monitor._journal.flush()
    return [entry.event.data for entry in read(monitor.run_dir) if entry.event.kind == kind]


def test_steps_are_recorded_at_the_given_rate(slow):
    for step in range(100):
        slow.log_step(step, {"loss": 1.0})
    assert len(recorded_by(slow, "metrics")) == 1


def test_the_rate_applies_to_each_metric_regardless_of_the_number_of_calls_per_step(slow):
    for step in range(50):
        slow.log_step(step, {"loss": 1.0})
        slow.log_step(step, {"accuracy": 0.5})
        slow.log_step(step, {"lr": 0.1, "loss": 2.0})
    assert [data["metrics"] for data in recorded_by(slow, "metrics")] == [
        {"loss": 1.0},
        {"accuracy": 0.5},
        {"lr": 0.1},
    ]


def test_the_rate_applies_to_pairs_and_graphs_too(slow):
    class Graph:
        def latest_metrics(self):
            return {"loss": 0.5}

    for step in range(5):
        slow.log_step(step, [("a", 1.0), ("b", 2.0)])
        slow.log_step(step, Graph())
    assert [data["metrics"] for data in recorded_by(slow, "metrics")] == [{"a": 1.0, "b": 2.0}, {"loss": 0.5}]


@pytest.mark.parametrize(
    ("step", "metrics", "epoch", "error"),
    [
        ("1", {"loss": 1.0}, None, MonitorError),
        (-1, {"loss": 1.0}, None, MonitorError),
        (1, {"loss": 1.0}, "0", MonitorError),
        (1, 0.5, None, MetricError),
        (1, {"other": torch.zeros(2)}, None, MetricError),
        (1, {1: 0.5, "1": 0.7}, None, MetricError),
    ],
)
def test_invalid_arguments_raise_at_every_step_even_if_no_value_is_due(slow, step, metrics, epoch, error):
    slow.log_step(0, {"loss": 1.0})
    for _ in range(3):
        with pytest.raises(error):
            slow.log_step(step, metrics, epoch=epoch)


def test_steps_that_restart_with_each_epoch_are_renumbered_with_one_alert(every):
    for epoch in range(3):
        for step in range(10):
            every.log_step(step, {"loss": 1.0}, epoch=epoch)
            if step % 5 == 4:
                every.log_step(step, {"norm": 2.0}, epoch=epoch)
    every._journal.flush()
    lines = snapshot(every.run_dir)["metrics"]
    assert lines["loss"]["x"] == list(range(30))
    assert lines["norm"]["x"] == [4, 9, 14, 19, 24, 29]
    (alert,) = recorded_by(every, "alert")
    assert "steps restart at 0 in each epoch" in alert["message"]


def test_steps_counted_over_the_run_are_kept_even_if_metrics_use_different_counters():
    steps = StepSampler(None, on_restart=lambda: pytest.fail("no step restarted"))
    found = []
    for epoch in range(3):
        steps.sample(epoch, {"val": 1.0}, epoch)
        found += [steps.sample(epoch * 10 + step, {"loss": 1.0}, epoch)[0] for step in range(10)]
    assert found == list(range(30))


def test_steps_are_kept_when_a_run_goes_back_to_an_earlier_epoch():
    steps = StepSampler(None, on_restart=lambda: pytest.fail("no step restarted"))
    steps.sample(300, {"loss": 1.0}, 3)
    assert steps.sample(100, {"loss": 1.0}, 1)[0] == 100


def test_steps_that_restart_after_a_resume_are_renumbered(tmp_path):
    for epoch in range(2):
        with Monitor(2, tmp_path, console=False, resources=False, step_rate=None) as monitor:
            for step in range(5):
                monitor.log_step(step, {"loss": 1.0}, epoch=epoch)
    assert snapshot(tmp_path)["metrics"]["loss"]["x"] == list(range(10))


def test_a_step_metric_that_is_not_finite_raises_one_alert(every):
    for step in range(3):
        every.log_step(step, {"loss": torch.tensor(math.nan), "accuracy": 0.5})
    every._journal.flush()
    every.log(0, {"loss": math.nan})
    (alert,) = recorded_by(every, "alert")
    assert alert["message"] == "loss is nan at step 0"


def test_steps_that_restart_without_an_epoch_are_renumbered_with_one_alert(every):
    for _ in range(3):
        for step in range(4):
            every.log_step(step, {"loss": 1.0})
            if step % 2:
                every.log_step(step, {"norm": 2.0})
    lines = snapshot_of(every)
    assert lines["loss"]["x"] == list(range(12))
    assert lines["norm"]["x"] == [1, 3, 5, 7, 9, 11]
    (alert,) = recorded_by(every, "alert")
    assert "steps restart at 0 in each epoch" in alert["message"]


@pytest.mark.parametrize("epoch", [None, 0])
def test_steps_that_go_back_are_reported_once(every, epoch):
    for step in (0, 1, 2, 3, 2, 3, 1):
        every.log_step(step, {"loss": float(step)}, epoch=epoch)
    (alert,) = recorded_by(every, "alert")
    assert alert["message"].startswith("step 2 was logged after step 3: in charts and tables")


def test_steps_that_increase_are_not_reported(every):
    for step in range(0, 40, 10):
        every.log_step(step, {"loss": 1.0})
        every.log_step(step, {"loss": 1.0, "norm": 2.0})
        every.log_step(step // 10, {"val": 1.0})
    assert recorded_by(every, "alert") == []


def snapshot_of(monitor):
    monitor._journal.flush()
    return snapshot(monitor.run_dir)["metrics"]


@pytest.mark.parametrize("as_value", [float, torch.tensor])
def test_the_last_value_before_the_end_of_an_epoch_or_a_run_is_kept(slow, as_value):
    for epoch in range(2):
        for step in range(5):
            slow.log_step(5 * epoch + step, {"loss": as_value(5.0 * epoch + step)}, epoch=epoch)
        if epoch == 0:
            slow.log(0, {"loss": 1.0})
    slow.finish()
    assert snapshot(slow.run_dir)["metrics"]["loss"] == {"x": [0, 4, 9], "y": [0.0, 4.0, 9.0]}
    kinds = [entry.event.kind for entry in read(slow.run_dir)]
    assert kinds == ["run_start", "metrics", "metrics", "epoch", "metrics", "run_end"]
    assert [data["epoch"] for data in recorded_by(slow, "metrics")] == [0, 0, 1]


def test_the_last_value_of_a_metric_in_several_calls_is_recorded_once(slow):
    for step in range(3):
        slow.log_step(step, {"loss": 1.0})
        slow.log_step(step, {"lr": 0.1, "loss": 2.0})
    slow.finish()
    first, second, last = recorded_by(slow, "metrics")
    assert (first["metrics"], second["metrics"]) == ({"loss": 1.0}, {"lr": 0.1})
    assert last == {"step": 2, "metrics": {"loss": 1.0, "lr": 0.1}}


def test_a_value_that_changed_after_the_call_is_not_recorded(slow):
    total = torch.zeros(())
    for step in range(3):
        total += 1.0
        slow.log_step(step, {"total": total})
    total.zero_()
    slow.finish()
    assert [data["metrics"] for data in recorded_by(slow, "metrics")] == [{"total": 1.0}]


def test_an_invalid_last_value_does_not_end_a_run(slow):
    slow.log_step(0, {"loss": torch.tensor(1.0)})
    slow.log_step(1, {"loss": torch.zeros(2)})
    with torch.inference_mode():
        slow.log_step(2, {"loss": torch.zeros(2)})
    slow.log_step(3, {"loss": "text"})
    slow.finish()
    assert len(recorded_by(slow, "metrics")) == 1
