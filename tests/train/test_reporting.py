"""What a run reports on the console about its end."""

import json

import pytest

from flodl.monitor import Monitor, read
from flodl.train.reporting import Reports


class StopAfter:
    def __init__(self, epoch):
        self.epoch = epoch

    def on_epoch_end(self, trainer):
        if trainer.epochs == self.epoch:
            trainer.stop("enough")


class StopAtOnce:
    def on_step_end(self, trainer):
        trainer.stop("enough")


@pytest.mark.parametrize("has_folder", [False, True])
def test_a_run_that_is_stopped_early_says_why_with_and_without_a_folder(
    make, data, tmp_path, capsys, has_folder
):
    folder = {"checkpoint_dir": tmp_path / "run"} if has_folder else {}
    make(hooks=[StopAfter(2)], monitor=None, **folder).fit(data, epochs=3, batch_size=10)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("  training stopped after")
    assert last.endswith("enough")


def test_a_run_that_is_stopped_in_its_first_epoch_says_why(make, data, capsys):
    make(hooks=[StopAtOnce()], monitor=None).fit(data, epochs=3, batch_size=10)
    assert capsys.readouterr().out.splitlines()[-1].endswith("enough")


def test_a_run_that_is_stopped_after_its_last_epoch_ends_as_usual(make, data, capsys):
    make(hooks=[StopAfter(2)], monitor=None).fit(data, epochs=2, batch_size=10)
    assert "stopped" not in capsys.readouterr().out


def test_a_monitor_that_stays_open_shows_why_a_run_was_stopped(make, data, capsys):
    with Monitor(3, resources=False) as monitor:
        make(hooks=[StopAfter(1)], monitor=monitor).fit(data, epochs=3, batch_size=10)
    assert "info: training stopped: enough" in capsys.readouterr().out


def test_a_silent_run_prints_nothing_when_it_is_stopped(make, data, capsys):
    make(hooks=[StopAfter(1)], monitor=False).fit(data, epochs=3, batch_size=10)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("monitor", [None, False])
def test_notes_appear_once_before_during_and_after_a_run_whether_or_not_there_is_a_console(monitor, capsys):
    reports = Reports(monitor, None)
    reports.note("between runs")
    with reports.open(lambda: ""):
        reports.note("before it begins")
        reports.event("alert", message="an ordinary line", level="info")
        reports.begin(None, shown=(), total_epochs=1, config={})
        reports.note("while it runs")
    with reports.open(lambda: ""):
        reports.note("in a run that does not begin")
    out = capsys.readouterr().out
    for note in ("between runs", "before it begins", "while it runs", "in a run that does not begin"):
        assert out.count(note) == 1
    assert ("an ordinary line" in out) == (monitor is None)


def test_an_option_with_the_name_of_a_trainer_setting_is_recorded_with_it(make, data, tmp_path, monkeypatch):
    given = {name: {"value": value, "origin": f"--{name}"} for name, value in (("limit", 50), ("epochs", 1))}
    monkeypatch.setenv("FLODL_RESOLVED_CONFIG", json.dumps(given))
    make(monitor=None, checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    (start,) = [entry.event.data for entry in read(tmp_path) if entry.event.kind == "run_start"]
    settings = {one["path"]: (one["value"], one["origin"]) for one in start["config"]}
    assert settings["limit"] == (None, "")
    assert settings["started_with.limit"] == (50, "--limit")
    assert settings["epochs"] == (1, "--epochs")
    assert "started_with.epochs" not in settings
