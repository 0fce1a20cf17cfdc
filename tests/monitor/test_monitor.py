"""The monitor in a hand-written loop."""

import gc
import math
import re
import subprocess
import sys

import pytest
import torch
from torch import nn

from flodl.core import MetricError, MonitorError
from flodl.monitor import Event, Monitor, read
from flodl.monitor.journal import Reader, find_runs
from flodl.monitor.sinks import Csv, JsonLines, TensorBoard
from flodl.monitor.snapshot import snapshot


def test_epochs_are_recorded_and_numbered_from_one(monitor):
    monitor.log(0, {"loss": 0.5}, duration=2.0)
    monitor.log(1, {"loss": torch.tensor(0.25, requires_grad=True), "accuracy": 1}, duration=4.0)
    first, second = monitor.history
    assert (first["epoch"], first["total"], first["duration"], first["eta"]) == (1, 3, 2.0, 4.0)
    assert second["metrics"] == {"loss": 0.25, "accuracy": 1.0}
    assert second["eta"] == 3.0
    monitor._journal.flush()
    kinds = [entry.event.kind for entry in read(monitor.run_dir) if entry.event.kind != "gc"]
    assert kinds == ["run_start", "epoch", "epoch"]


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"loss": torch.zeros(2)}, r"the metric 'loss' got a tensor of shape \(2,\). Pass a single number"),
        ({"loss": "low"}, r"the metric 'loss' got 'low'. Pass a single number"),
        (0.5, r"cannot read metrics from a float. Pass a dict such as"),
        ({"": 1.0}, "a metric has an empty name"),
    ],
)
def test_an_invalid_metric_raises_with_its_name(monitor, metrics, message):
    with pytest.raises(MetricError, match=message):
        monitor.log(0, metrics)
    assert monitor.history == []


@pytest.mark.parametrize(
    "metrics",
    [{"loss": torch.zeros(3)}, {"loss": "0.5"}, {"loss": [1.0]}, {"loss": torch.zeros(3, device="meta")}],
)
def test_a_step_metric_that_is_not_a_single_number_raises(monitor, metrics):
    with pytest.raises(MetricError, match=r"the metric 'loss' got .* Pass a single number"):
        monitor.log_step(0, metrics)


def test_step_metrics_accept_tensors_and_keep_their_value_at_the_time_of_the_call(monitor, recorded):
    loss = torch.tensor(0.5).requires_grad_()
    monitor.log_step(7, {"loss": loss, "lr": 1e-3}, epoch=1)
    loss.detach().fill_(9.0)
    assert recorded("metrics") == [{"epoch": 1, "step": 7, "metrics": {"loss": 0.5, "lr": 1e-3}}]


def test_progress_is_rate_limited_but_the_end_of_an_epoch_is_always_recorded(monitor, recorded):
    for step in range(1, 1001):
        monitor.progress(0, step, 1000)
    steps = [data["step"] for data in recorded("progress")]
    assert steps[-1] == 1000
    assert len(steps) < 100


def test_a_metric_that_is_not_finite_raises_one_alert(monitor, recorded):
    for epoch in range(3):
        monitor.log(epoch, {"loss": math.nan, "accuracy": 0.5})
    assert recorded("alert") == [{"message": "loss is nan in epoch 1", "level": "warning"}]


def test_views_receive_every_event_and_a_failing_view_is_removed_with_one_alert(tmp_path):
    seen = []

    def broken(event):
        raise RuntimeError("out of paper")

    with Monitor(
        1, tmp_path, console=False, resources=False, step_rate=None, views=[broken, seen.append]
    ) as monitor:
        monitor.log_step(0, {"loss": torch.tensor(0.5)})
        monitor.log(0, {"loss": 0.5})
    events = [event for event in seen if event.kind != "gc"]
    assert sorted({event.kind for event in events}) == ["alert", "epoch", "metrics", "run_end", "run_start"]
    assert next(event for event in events if event.kind == "metrics").data["metrics"] == {"loss": 0.5}
    (alert,) = (event for event in events if event.kind == "alert")
    assert "broken failed and is no longer called: RuntimeError: out of paper" in alert.data["message"]


def test_config_is_recorded_by_path_with_its_origin(tmp_path):
    config = {"optimizer": {"lr": 1e-3, "betas": (0.9, 0.99)}, "device": torch.device("cpu")}
    with Monitor(
        1,
        tmp_path,
        console=False,
        resources=False,
        step_rate=None,
        config=config,
        origins={"optimizer.lr": "--lr"},
    ):
        pass
    assert snapshot(tmp_path)["config"] == [
        {"path": "optimizer.lr", "value": 1e-3, "origin": "--lr"},
        {"path": "optimizer.betas", "value": [0.9, 0.99], "origin": ""},
        {"path": "device", "value": "cpu", "origin": ""},
    ]


class ExitWithText(SystemExit):
    def __str__(self):
        return "asked to stop"


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (None, "finished", None),
        (SystemExit(0), "finished", None),
        (SystemExit(None), "finished", None),
        (SystemExit(3), "stopped", "the program exited with code 3"),
        (SystemExit("no data"), "stopped", "the program exited: no data"),
        (ExitWithText(75), "stopped", "the program exited with code 75: asked to stop"),
        (KeyboardInterrupt(), "stopped", "interrupted from the keyboard"),
        (ValueError("bad"), "failed", "ValueError: bad"),
    ],
)
def test_the_status_follows_from_the_exception_that_ended_the_run(tmp_path, error, status, message):
    def run():
        with Monitor(1, tmp_path, console=False, resources=False, step_rate=None):
            if error is not None:
                raise error

    if error is None:
        run()
    else:
        with pytest.raises(type(error)):
            run()
    (end,) = [entry.event.data for entry in read(tmp_path) if entry.event.kind == "run_end"]
    assert (end["status"], end.get("message")) == (status, message)
    state = snapshot(tmp_path)["status"]
    assert (state["state"], state.get("message")) == (status, message)


def test_only_the_first_call_of_finish_has_an_effect(monitor, recorded):
    monitor.finish("stopped", "enough")
    monitor.finish()
    (end,) = recorded("run_end")
    assert end["status"] == "stopped"


def test_a_program_that_crashes_without_finish_is_recorded_as_failed(tmp_path):
    code = (
        "from flodl.monitor import Monitor\n"
        f"monitor = Monitor(2, {str(tmp_path)!r}, console=False, resources=False, step_rate=None)\n"
        "monitor.log(0, {'loss': 0.5})\n"
        "raise SystemError('lost the disk')\n"
    )
    subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    state = snapshot(tmp_path)
    assert (state["status"]["state"], state["status"]["message"]) == ("failed", "SystemError: lost the disk")
    assert len(state["history"]) == 1


def test_without_a_run_dir_a_temporary_folder_is_used_and_deleted(tmp_path):
    monitor = Monitor(1, console=False, resources=False, step_rate=None)
    folder = monitor.run_dir
    monitor.log(0, {"loss": 0.5})
    monitor.finish()
    assert monitor.save_html(tmp_path / "run.html").stat().st_size > 50_000
    del monitor
    gc.collect()
    assert not folder.exists()


def test_long_collections_are_recorded_and_the_gc_callback_is_removed_at_the_end(tmp_path):
    before = list(gc.callbacks)
    monitor = Monitor(1, tmp_path, console=False, resources=False, step_rate=None)
    pauses = monitor._sources[0]
    pauses._min_duration_s = 0.0
    gc.collect()
    monitor.finish()
    assert any(entry.event.data["generation"] == 2 for entry in Reader(tmp_path).entries({"gc"}))
    assert gc.callbacks == before


def test_the_duration_of_a_run_is_at_least_the_sum_of_its_epochs(monitor, recorded):
    monitor.log(0, {"loss": 1.0}, duration=100.0)
    monitor.log(1, {"loss": 1.0}, duration=100.0)
    monitor.finish()
    (end,) = recorded("run_end")
    assert end["duration_s"] == 200.0


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda monitor: monitor.log(0, {"loss": 1.0}), "Log epochs before calling finish()"),
        (lambda monitor: monitor.log_step(0, {"loss": 1.0}), "Log steps before calling finish()"),
        (lambda monitor: monitor.progress(0, 1, 2), "Report progress before calling finish()"),
        (lambda monitor: monitor.alert("late"), "Send alerts before calling finish()"),
        (lambda monitor: monitor.watch(nn.Linear(1, 1)), "Watch the model before calling finish()"),
    ],
)
def test_after_finish_every_call_raises_except_emit(monitor, recorded, call, advice):
    monitor.finish()
    with pytest.raises(MonitorError) as caught:
        call(monitor)
    assert str(caught.value) == f"the run has finished. {advice}."
    monitor.emit(Event("alert", {"message": "from a thread that outlives the run"}))
    assert recorded("alert") == []


def test_the_command_that_shows_a_finished_run_again_quotes_its_folder(tmp_path):
    with Monitor(1, tmp_path / "my run", console=False, resources=False) as monitor:
        monitor.log(0, {"loss": 0.5})
    with pytest.raises(MonitorError, match=r"`fdl monitor '.*my run'` shows the run again"):
        monitor.serve()


def test_a_tilde_in_the_folder_of_a_run_and_in_every_file_of_it_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    home = tmp_path / "home"
    sinks = [Csv("~/a.csv"), JsonLines("~/a.jsonl"), TensorBoard("~/board")]
    with Monitor(1, "~/runs/first", sinks=sinks, console=False, resources=False) as monitor:
        monitor.log(0, {"loss": 0.5}, duration=1.0)
        assert monitor.run_dir == home / "runs/first"
        assert monitor.export_csv("~/b.csv") == home / "b.csv"
        assert monitor.save_html("~/b.html") == home / "b.html"
    assert Reader("~/runs/first").path == home / "runs/first/journal.jsonl"
    assert find_runs("~/runs") == [home / "runs/first"]
    assert sorted(path.name for path in home.iterdir()) == [
        "a.csv", "a.jsonl", "b.csv", "b.html", "board", "runs",
    ]  # fmt: skip
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("log_epoch", "a Monitor has no attribute 'log_epoch'. Write monitor.log(epoch, {'loss': 0.5})."),
        ("finsh", "a Monitor has no attribute 'finsh'. Did you mean 'finish'?"),
        ("runs_dir", "Did you mean 'run_dir'?"),
        ("add_scalar", "Write monitor.log_step(step, {'loss': 0.5}) within an epoch"),
    ],
)
def test_a_misspelled_attribute_of_a_monitor_is_an_error_with_advice(monitor, name, advice):
    with pytest.raises(MonitorError, match=re.escape(advice)) as raised:
        getattr(monitor, name)
    assert isinstance(raised.value, AttributeError)
    assert not hasattr(monitor, name)
    with pytest.raises(AttributeError, match="has no attribute '_private'"):
        monitor._private  # noqa: B018


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (None, "got None. Leave it out until it has a value."),
        ("low", "got 'low'. Pass a single number. Texts belong in monitor.describe({name: text})."),
        ([0.5, 0.6], "got [0.5, 0.6]. Pass a single number, for example with .mean()."),
        (object, "got <class 'object'>. Pass a single number."),
    ],
)
def test_the_advice_for_a_metric_that_is_no_number_fits_its_type(monitor, value, advice):
    with pytest.raises(MetricError, match=f"{re.escape(advice)}$"):
        monitor.log(0, {"loss": value})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda m: m.progress(0),
            r"progress needs 'step'. Write monitor.progress\(epoch, step, num_steps\).",
        ),
        (lambda m: m.progress(0, 1, total=5), "progress has no argument 'total'. Write num_steps=…."),
        (lambda m: m.alert("hot", "error"), "alert got str, str by position"),
        (lambda m: m.alert(3), "the message of the alert is 3. Pass a string."),
        (lambda m: m.export_csv(), "export_csv needs 'path'"),
        (lambda m: m.log(0, {}, tables=[1]), r"tables is \[1\]. Pass a dict of tables by name."),
        (lambda m: m.log_step(0, {}, also=3), "also is 3. Pass a function"),
        (lambda m: m.emit(Event("epoch", 3)), "the data of the event is 3. Pass a dict"),
        (lambda m: m.serve(host=3), "host is 3. Pass a string"),
    ],
)
def test_wrong_arguments_of_a_method_raise_with_the_right_call(monitor, call, message):
    with pytest.raises(MonitorError, match=message):
        call(monitor)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 15, 10), "progress(0, 15, 10): step 15 of 10 does not exist."),
        ((10, 0, 20), "progress(10, 0, 20): the last of 3 epochs is epoch 2, counted from 0."),
    ],
)
def test_progress_at_a_position_that_does_not_exist_is_reported_once(monitor, recorded, arguments, message):
    for _ in range(3):
        monitor.progress(*arguments)
    (alert,) = recorded("alert")
    assert alert["message"].startswith(message)


def test_progress_to_the_last_step_is_not_reported(monitor, recorded):
    for epoch in range(3):
        for step in range(11):
            monitor.progress(epoch, step, 10)
    assert recorded("alert") == []
