"""Values within epochs: what is taken, at which step it lies, and what is refused."""

import math

import pytest
import torch

from flodl.core import MetricError, MonitorError
from flodl.monitor import Monitor, read
from flodl.monitor.snapshot import snapshot
from flodl.monitor.steps import Steps


@pytest.fixture
def slow(tmp_path):
    made = Monitor(3, tmp_path / "slow", console=False, resources=False, step_rate=0.001)
    yield made
    made.close()


@pytest.fixture
def every(tmp_path):
    made = Monitor(3, tmp_path / "every", console=False, resources=False, step_rate=None)
    yield made
    made.close()


def told(monitor, kind):
    monitor._journal.flush()
    return [entry.event.data for entry in read(monitor.run_dir) if entry.event.kind == kind]


def test_each_metric_has_a_rate_of_its_own_however_many_calls_a_step_has(slow):
    for step in range(50):
        slow.log_step(step, {"loss": 1.0})
        slow.log_step(step, {"accuracy": 0.5})
        slow.log_step(step, {"lr": 0.1, "loss": 2.0})
    assert [data["metrics"] for data in told(slow, "metrics")] == [
        {"loss": 1.0},
        {"accuracy": 0.5},
        {"lr": 0.1},
    ]


def test_pairs_and_graphs_are_paced_too(slow):
    class Graph:
        def latest_metrics(self):
            return {"loss": 0.5}

    for step in range(5):
        slow.log_step(step, [("a", 1.0), ("b", 2.0)])
        slow.log_step(step, Graph())
    assert [data["metrics"] for data in told(slow, "metrics")] == [{"a": 1.0, "b": 2.0}, {"loss": 0.5}]


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
def test_what_is_wrong_is_refused_at_every_step_and_not_only_when_one_is_taken(
    slow, step, metrics, epoch, error
):
    slow.log_step(0, {"loss": 1.0})
    for _ in range(3):
        with pytest.raises(error):
            slow.log_step(step, metrics, epoch=epoch)


def test_steps_that_start_again_with_each_epoch_are_counted_on_and_told_once(every):
    for epoch in range(3):
        for step in range(10):
            every.log_step(step, {"loss": 1.0}, epoch=epoch)
            if step % 5 == 4:
                every.log_step(step, {"norm": 2.0}, epoch=epoch)
    every._journal.flush()
    lines = snapshot(every.run_dir)["metrics"]
    assert lines["loss"]["x"] == list(range(30))
    assert lines["norm"]["x"] == [4, 9, 14, 19, 24, 29]
    (alert,) = told(every, "alert")
    assert "steps start again with each epoch" in alert["message"]


def test_steps_of_the_run_stay_as_they_are_also_with_counters_of_another_pace():
    steps = Steps(None, on_restart=lambda: pytest.fail("nothing started again"))
    found = []
    for epoch in range(3):
        steps.take(epoch, {"val": 1.0}, epoch)
        found += [steps.take(epoch * 10 + step, {"loss": 1.0}, epoch)[0] for step in range(10)]
    assert found == list(range(30))


def test_a_run_that_goes_back_to_an_earlier_epoch_is_cut_there():
    steps = Steps(None, on_restart=lambda: pytest.fail("nothing started again"))
    steps.take(300, {"loss": 1.0}, 3)
    assert steps.take(100, {"loss": 1.0}, 1)[0] == 100


def test_a_continued_run_counts_on_where_its_steps_start_again(tmp_path):
    for epoch in range(2):
        with Monitor(2, tmp_path, console=False, resources=False, step_rate=None) as monitor:
            for step in range(5):
                monitor.log_step(step, {"loss": 1.0}, epoch=epoch)
    assert snapshot(tmp_path)["metrics"]["loss"]["x"] == list(range(10))


def test_a_value_within_an_epoch_that_is_not_finite_is_an_alert_once(every):
    for step in range(3):
        every.log_step(step, {"loss": torch.tensor(math.nan), "accuracy": 0.5})
    every._journal.flush()
    every.log(0, {"loss": math.nan})
    (alert,) = told(every, "alert")
    assert alert["message"] == "loss is nan at step 0"
