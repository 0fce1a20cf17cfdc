"""The monitor in a hand-written loop: what it takes, what it tells, what it never does."""

import csv
import gc
import math
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, TrainStep
from flodl.core import MetricError, MonitorError
from flodl.core.log import set_verbosity, verbosity
from flodl.monitor import Event, Monitor, read
from flodl.monitor.journal import Journal, Reader
from flodl.monitor.sinks import Csv
from flodl.monitor.snapshot import picture, snapshot


@pytest.fixture
def monitor(tmp_path):
    made = Monitor(3, tmp_path / "run", console=False, resources=False, step_rate=None)
    yield made
    made.close()


@pytest.fixture
def talking():
    before = verbosity()
    set_verbosity("normal")
    yield
    set_verbosity(before)


def kinds(monitor):
    monitor._journal.flush()
    return [entry.event.kind for entry in read(monitor.run_dir) if entry.event.kind != "gc"]


def told(monitor, kind):
    monitor._journal.flush()
    return [entry.event.data for entry in read(monitor.run_dir) if entry.event.kind == kind]


def test_epochs_are_kept_as_people_count_them(monitor):
    monitor.log(0, {"loss": 0.5}, duration=2.0)
    monitor.log(1, {"loss": torch.tensor(0.25, requires_grad=True), "accuracy": 1}, duration=4.0)
    first, second = monitor.history
    assert (first["epoch"], first["total"], first["duration"], first["eta"]) == (1, 3, 2.0, 4.0)
    assert second["metrics"] == {"loss": 0.25, "accuracy": 1.0}
    assert second["eta"] == 3.0
    assert kinds(monitor) == ["run_start", "epoch", "epoch"]


def test_a_graph_gives_its_own_metrics(monitor):
    model = FlowBuilder(nn.Linear(2, 2)).label("net").build()
    model.record("loss", 0.5)
    model.end_epoch()
    monitor.log(0, model)
    monitor.log(1, [("loss", 0.25)])
    assert [record["metrics"] for record in monitor.history] == [{"loss": 0.5}, {"loss": 0.25}]


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"loss": torch.zeros(2)}, r"the metric 'loss' got a tensor of shape \(2,\). Give one number"),
        ({"loss": "low"}, r"the metric 'loss' got 'low'. Give one number"),
        (0.5, r"metrics are given as float. Give a dict such as"),
    ],
)
def test_what_is_no_metric_is_refused_by_name(monitor, metrics, message):
    with pytest.raises(MetricError, match=message):
        monitor.log(0, metrics)
    assert monitor.history == []


def test_without_a_duration_the_time_since_the_last_epoch_counts_and_set_up_does_not(monitor):
    monitor._epochs._began_s -= 1000.0
    monitor.progress(0, 1, 10)
    monitor.log(0, {"loss": 1.0})
    monitor._epochs._began_s -= 50.0
    monitor.log(1, {"loss": 1.0})
    first, second = (record["duration"] for record in monitor.history)
    assert first < 10.0
    assert 50.0 <= second < 60.0


def test_the_estimate_is_good_right_after_a_resume(tmp_path):
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


def test_steps_take_tensors_and_keep_the_value_of_that_moment(monitor):
    loss = torch.tensor(0.5).requires_grad_()
    monitor.log_step(7, {"loss": loss, "lr": 1e-3}, epoch=1)
    loss.detach().fill_(9.0)
    (data,) = told(monitor, "metrics")
    assert data == {"epoch": 1, "step": 7, "metrics": {"loss": 0.5, "lr": 1e-3}}


def test_steps_are_taken_at_the_chosen_rate(tmp_path):
    with Monitor(1, tmp_path, console=False, resources=False, step_rate=0.001) as monitor:
        for step in range(100):
            monitor.log_step(step, {"loss": 1.0})
        assert len(told(monitor, "metrics")) == 1


def test_progress_is_thinned_but_the_end_of_an_epoch_is_always_told(monitor):
    for step in range(1, 1001):
        monitor.progress(0, step, 1000)
    told_steps = [data["step"] for data in told(monitor, "progress")]
    assert told_steps[-1] == 1000
    assert len(told_steps) < 100


def test_a_metric_that_is_not_finite_is_an_alert_once(monitor):
    for epoch in range(3):
        monitor.log(epoch, {"loss": math.nan, "accuracy": 0.5})
    (alert,) = told(monitor, "alert")
    assert alert == {"message": "loss is nan in epoch 1", "level": "warning"}


def test_views_see_every_event_and_one_that_fails_is_dropped_with_one_alert(tmp_path):
    seen = []

    def broken(event):
        raise RuntimeError("no more paper")

    with Monitor(
        1, tmp_path, console=False, resources=False, step_rate=None, views=[broken, seen.append]
    ) as monitor:
        monitor.log_step(0, {"loss": torch.tensor(0.5)})
        monitor.log(0, {"loss": 0.5})
    mine = [event for event in seen if event.kind != "gc"]
    assert sorted({event.kind for event in mine}) == ["alert", "epoch", "metrics", "run_end", "run_start"]
    assert next(event for event in mine if event.kind == "metrics").data["metrics"] == {"loss": 0.5}
    (alert,) = (event for event in mine if event.kind == "alert")
    assert "broken failed and is no longer called: RuntimeError: no more paper" in alert.data["message"]


def test_a_graph_is_shown_with_its_size_hash_and_picture(monitor):
    model = FlowBuilder(nn.Linear(2, 3)).through(nn.GELU()).label("net").build()
    model.freeze("linear_1") if "linear_1" in dict(model.named_children()) else None
    monitor.watch(model)
    (graph,) = told(monitor, "graph")
    assert (graph["label"], graph["parameters"]["total"]) == ("net", 9)
    assert graph["hash"] == model.structural_hash
    svg = picture(monitor.run_dir)
    assert svg is not None
    assert svg.startswith("<svg")
    model.profile(torch.randn(4, 2))
    monitor.finish()
    assert "Forward:" in (picture(monitor.run_dir) or "")


def test_any_module_can_be_watched_and_other_things_are_refused(monitor):
    monitor.watch(nn.Linear(2, 3))
    (graph,) = told(monitor, "graph")
    assert graph["label"] == "Linear"
    assert "path" not in graph
    with pytest.raises(MonitorError, match=r"a int cannot be watched. Give a Graph"):
        monitor.watch(3)


def test_a_training_step_tells_its_tier_with_the_reason(monitor):
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
    tiers = told(monitor, "tier")
    assert {tier["tier"] for tier in tiers} == {"eager"}
    assert all(tier["reason"] for tier in tiers)
    assert len(tiers) <= 2


def test_configuration_is_told_by_path_with_its_origin(tmp_path):
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


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (None, "finished", None),
        (ValueError("the data are gone"), "failed", "ValueError: the data are gone"),
        (KeyboardInterrupt(), "stopped", "stopped by the keyboard"),
    ],
)
def test_the_end_says_how_it_came(tmp_path, error, status, message):
    def run():
        with Monitor(1, tmp_path, console=False, resources=False, step_rate=None):
            if error is not None:
                raise error

    if error is None:
        run()
    else:
        with pytest.raises(type(error)):
            run()
    state = snapshot(tmp_path)["status"]
    assert (state["state"], state.get("message")) == (status, message)


def test_only_the_first_end_counts(monitor):
    monitor.finish("stopped", "enough")
    monitor.finish()
    (end,) = told(monitor, "run_end")
    assert end["status"] == "stopped"


def test_a_program_that_ends_without_a_word_is_told(tmp_path):
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


def test_without_a_folder_everything_works_and_nothing_stays(tmp_path):
    monitor = Monitor(1, console=False, resources=False, step_rate=None)
    folder = monitor.run_dir
    monitor.log(0, {"loss": 0.5})
    monitor.finish()
    assert monitor.save_html(tmp_path / "run.html").stat().st_size > 50_000
    del monitor
    gc.collect()
    assert not folder.exists()


def test_long_collections_are_told_and_the_hook_goes_with_the_run(tmp_path):
    before = list(gc.callbacks)
    monitor = Monitor(1, tmp_path, console=False, resources=False, step_rate=None)
    pauses = monitor._sources[0]
    pauses._least_s = 0.0
    gc.collect()
    monitor.finish()
    assert any(entry.event.data["generation"] == 2 for entry in Reader(tmp_path).entries({"gc"}))
    assert gc.callbacks == before


def test_the_table_has_every_column_whatever_the_epochs_have(monitor, tmp_path):
    monitor.emit(Event("resources", {"cpu_pct": 50.0, "gpus": [{"util_pct": 80.0}, {"util_pct": 90.0}]}))
    monitor.log(0, {"loss": 0.5, "=cmd()": 1.0}, duration=1.0)
    monitor.log(1, {"accuracy": 0.75, "loss": math.nan}, duration=2.0)
    with open(monitor.export_csv(tmp_path / "run.csv"), newline="") as file:
        first, second = csv.DictReader(file)
    assert list(first)[:5] == ["epoch", "duration_s", "loss", "'=cmd()", "accuracy"]
    assert (first["loss"], first["accuracy"], first["'=cmd()"]) == ("0.5", "", "1")
    assert (second["loss"], second["accuracy"], second["'=cmd()"]) == ("nan", "0.75", "")
    assert (first["cpu_pct"], first["gpu_pct"]) == ("50", "85")


def test_the_log_has_a_line_for_each_epoch_and_the_total(monitor, tmp_path):
    monitor.log(0, {"loss": 0.5}, duration=61.0)
    monitor.log(1, {"a b": 0.25}, duration=1.5)
    text = monitor.write_log(tmp_path / "run.log").read_text()
    assert text.splitlines() == [
        "# flodl training log",
        "epoch 1/3  loss=0.5000  [1m 01s]",
        'epoch 2/3  "a b"=0.2500  [1.5s]',
        "# total: 1m 02s",
    ]


def test_an_export_of_nothing_is_refused(monitor, tmp_path):
    with pytest.raises(MonitorError, match="has no epoch yet, so there is nothing to export"):
        monitor.export_csv(tmp_path / "run.csv")


def test_large_numbers_and_names_of_any_script_stay_readable_in_exports(monitor, tmp_path):
    monitor.log(0, {"norm": 1e30, "bytes": 34_359_738_368.0, "🏳️‍🌈": 1.0, "a\u202eb": 2.0}, duration=1.0)
    row = monitor.export_csv(tmp_path / "run.csv").read_text().splitlines()[1]
    assert row.startswith("1,1,1e+30,34359738368,1,2")
    line = monitor.write_log(tmp_path / "run.log").read_text().splitlines()[1]
    assert "norm=1.00e+30  bytes=3.44e+10  🏳️‍🌈=1.0000" in line
    assert '"a\\u202eb"=2.0000' in line


@pytest.mark.parametrize(
    "given",
    [{"loss": torch.zeros(3)}, {"loss": "0.5"}, {"loss": [1.0]}, {"loss": torch.zeros(3, device="meta")}],
)
def test_what_is_not_one_number_is_refused_within_an_epoch_too(monitor, given):
    with pytest.raises(MetricError, match=r"the metric 'loss' got .* Give one number"):
        monitor.log_step(0, given)


def test_a_metric_needs_a_name(monitor):
    with pytest.raises(MetricError, match="a metric has an empty name"):
        monitor.log(0, {"": 1.0})


@pytest.mark.parametrize("total", ["runs/x", -1, 2.5, True, None])
def test_the_number_of_epochs_is_looked_at_first(total, tmp_path):
    with pytest.raises(MonitorError, match=r"total_epochs is .*Monitor\(10, 'runs/first'\)"):
        Monitor(total, console=False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda monitor: monitor.finish("done"), "status is 'done'. It is one of finished, stopped, failed"),
        (
            lambda monitor: monitor.alert("x", level="loud"),
            "level is 'loud'. It is one of info, warning, error",
        ),
        (lambda monitor: monitor.serve(70_000), "port is 70000. Give a port from 1 to 65535"),
        (lambda monitor: monitor.serve(-1), "port is -1. Give a port"),
        (lambda monitor: monitor.serve("x"), "port is 'x'. Give a port"),
        (lambda monitor: monitor.log("one", {"loss": 1.0}), "epoch is 'one'. Count epochs from 0"),
        (lambda monitor: monitor.log_step(0.5, {"loss": 1.0}), "step is 0.5. Give a whole number"),
        (
            lambda monitor: monitor.emit(Event("alarm", {})),
            "'alarm' is no kind of event. There are run_start",
        ),
        (lambda monitor: monitor.emit(Event("save", {})), "a save event has no path"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_to_do(monitor, call, message):
    with pytest.raises(MonitorError) as caught:
        call(monitor)
    assert message in str(caught.value)
    monitor.log(0, {"loss": 1.0})  # and the run goes on


class Left(SystemExit):
    def __str__(self):
        return "told to stop"


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (SystemExit(0), "finished", None),
        (SystemExit(None), "finished", None),
        (SystemExit(3), "stopped", "the program left with exit code 3"),
        (SystemExit("no data"), "stopped", "the program left: no data"),
        (Left(75), "stopped", "the program left with exit code 75: told to stop"),
        (ValueError("bad"), "failed", "ValueError: bad"),
    ],
)
def test_leaving_the_program_is_no_failure(tmp_path, error, status, message):
    with pytest.raises(type(error)), Monitor(1, tmp_path, console=False, resources=False):
        raise error
    (end,) = [entry.event.data for entry in read(tmp_path) if entry.event.kind == "run_end"]
    assert (end["status"], end.get("message")) == (status, message)


def test_an_old_journal_without_a_run_is_empty_and_not_running(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.touch()
    os.utime(path, (1.0, 1.0))
    assert snapshot(tmp_path)["status"]["state"] == "empty"


def test_what_a_run_took_does_not_depend_on_the_clock_on_the_wall(tmp_path):
    with Journal.open(tmp_path) as journal:
        journal.write(Event("run_start", {"name": "jump"}, time_s=0.0))
        journal.write(Event("run_end", {"status": "finished", "duration_s": 7.5}, time_s=2.6e6))
    assert snapshot(tmp_path)["status"]["elapsed_s"] == 7.5


@pytest.mark.usefixtures("talking")
def test_an_epoch_that_comes_again_takes_the_later_ones_away(tmp_path, capsys):
    with Monitor(4, tmp_path, console=False, resources=False) as monitor:
        for epoch in range(4):
            monitor.log(epoch, {"loss": 1.0}, duration=1.0)
    assert capsys.readouterr().out == ""
    with Monitor(4, tmp_path, resources=False) as monitor:
        assert "continues a journal with 4 epochs" in capsys.readouterr().out
        assert len(monitor.history) == 4
        monitor.log(0, {"loss": 9.0}, duration=1.0)
        monitor.log(1, {"loss": 8.0}, duration=1.0)
        assert [record["metrics"]["loss"] for record in monitor.history] == [9.0, 8.0]
    assert [record["metrics"]["loss"] for record in snapshot(tmp_path)["history"]] == [9.0, 8.0]


def test_the_whole_run_never_took_less_than_its_epochs(monitor, tmp_path):
    monitor.log(0, {"loss": 1.0}, duration=100.0)
    monitor.log(1, {"loss": 1.0}, duration=100.0)
    monitor.finish()
    (end,) = [entry.event.data for entry in read(monitor.run_dir) if entry.event.kind == "run_end"]
    assert end["duration_s"] == 200.0


class Nothing:
    """No sink, no view."""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"config": [1]}, "config is [1]. Give a dict"),
        ({"origins": "x"}, "origins is 'x'. Give a dict"),
        ({"rank": -1}, "rank is -1. Ranks count from 0"),
        ({"console": "no"}, "console is 'no'. It is True or False"),
        ({"resources": 1}, "resources is 1. It is True or False"),
        ({"name": 5}, "name is 5. Give a text"),
        ({"run_dir": ""}, "run_dir is ''. Name a folder"),
        ({"run_dir": 5}, "run_dir is 5. Name a folder"),
        ({"views": print}, "views is <built-in function print>. Give a list of callables"),
        ({"views": [5]}, "views has 5. Give a list of callables"),
        ({"sinks": Nothing()}, "Give a list of sinks, with write and close"),
        ({"sinks": [Csv]}, "Give a list of sinks, with write and close"),
        ({"sinks": [None]}, "Give a list of sinks, with write and close"),
        ({"step_rate": "fast"}, "step_rate is 'fast'. Give values in a second"),
        ({"step_rate": 0}, "step_rate is 0. Give values in a second"),
    ],
)
def test_a_monitor_refuses_what_it_cannot_be_made_with(options, message):
    with pytest.raises(MonitorError) as caught:
        Monitor(1, **{"console": False, **options})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda monitor, _: monitor.emit("epoch"), "'epoch' is no event. Give one, as in Event("),
        (lambda monitor, _: monitor.emit({}), "{} is no event"),
        (lambda monitor, folder: monitor.save_html(folder), "is a folder. Name the file"),
        (lambda monitor, folder: monitor.export_csv(folder), "is a folder. Name the file"),
        (lambda monitor, folder: monitor.write_log(folder), "is a folder. Name the file"),
        (lambda monitor, _: monitor.save_html(5), "5 is no path"),
        (lambda monitor, _: monitor.serve(0, token=5), "token is 5. Give a text"),
        (lambda monitor, _: monitor.serve(0, token=""), "token is ''. Give a text"),
        (lambda monitor, _: monitor.progress("a", 1, 2), "epoch is 'a'. Count epochs from 0"),
        (lambda monitor, _: monitor.progress(0, 1, -5), "num_steps is -5. Give the steps of an epoch"),
        *(
            (lambda monitor, _, given=given: monitor.log(0, {"loss": 1.0}, given), f"duration is {given!r}.")
            for given in (-1, math.nan, math.inf, "1", True)
        ),
    ],
)
def test_what_is_given_is_looked_at_before_it_is_used(monitor, tmp_path, call, message):
    monitor.progress(0, 1, 10)  # and within the interval in which no other progress is taken
    with pytest.raises(MonitorError) as caught:
        call(monitor, tmp_path)
    assert message in str(caught.value)
    assert monitor.history == []


@pytest.mark.parametrize(
    "call",
    [
        lambda monitor: monitor.log(0, {"loss": 1.0}),
        lambda monitor: monitor.log_step(0, {"loss": 1.0}),
        lambda monitor: monitor.progress(0, 1, 2),
        lambda monitor: monitor.alert("late"),
        lambda monitor: monitor.watch(nn.Linear(1, 1)),
    ],
)
def test_after_the_end_nothing_more_is_taken(monitor, call):
    monitor.finish()
    with pytest.raises(MonitorError, match="the run has finished and takes no more"):
        call(monitor)
    monitor.emit(Event("alert", {"message": "from a thread that outlives the run"}))
    assert "alert" not in kinds(monitor)


def test_a_run_without_epochs_is_a_table_of_its_steps(monitor, tmp_path):
    monitor.log_step(0, {"loss": 0.5})
    monitor.log_step(2, {"loss": 0.25, "=lr": 0.1})
    text = monitor.export_csv(tmp_path / "run.csv").read_text()
    assert text == "step,loss,'=lr\n0,0.5,\n2,0.25,0.1\n"
    with pytest.raises(MonitorError, match="has no epoch yet"):
        monitor.write_log(tmp_path / "run.log")
