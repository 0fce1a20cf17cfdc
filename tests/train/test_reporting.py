"""What a run reports on the console about its end."""

import json

import pytest
import torch

from flodl.data import Loader
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


BAGS = [(torch.randn(4 + number % 3, 3), torch.randn(1, 1)) for number in range(6)]
NOTED = "samples: the first tensor of a batch has 4 rows and others have 1; it counts as 4 samples"


def loss_of_bag(model, x, y):
    return (model(x).mean(0) - y[0]).square().mean()


@pytest.mark.parametrize("monitor", [None, False])
@pytest.mark.parametrize("has_folder", [False, True])
def test_the_samples_of_a_batch_of_the_program_are_noted_with_and_without_a_folder(
    make, tmp_path, capsys, monitor, has_folder
):
    folder = {"checkpoint_dir": tmp_path / "run"} if has_folder else {}
    trainer = make(step_fn=loss_of_bag, monitor=monitor, **folder)
    trainer.fit(BAGS, epochs=2)
    printed = capsys.readouterr()
    assert printed.out.count(NOTED) == 1
    assert "tier eager: the first" not in printed.out
    assert printed.err == ""
    if has_folder and monitor is None:
        (note,) = [entry.event.data for entry in read(tmp_path / "run") if entry.event.kind == "note"]
        assert note["about"] == "samples"
        assert note["message"] in printed.out


@pytest.mark.parametrize("has_folder", [False, True])
def test_the_samples_of_a_batch_that_is_a_whole_epoch_are_not_noted(make, tmp_path, capsys, has_folder):
    folder = {"checkpoint_dir": tmp_path / "run"} if has_folder else {}
    make(step_fn=loss_of_bag, monitor=None, **folder).fit(BAGS[:1], epochs=2)
    assert "rows" not in "".join(capsys.readouterr())


def test_training_and_evaluation_note_the_samples_in_the_same_way(make, capsys):
    make(step_fn=loss_of_bag).fit(BAGS, epochs=1, eval_data=BAGS)
    printed = capsys.readouterr()
    assert printed.out.count(NOTED) == 1
    assert printed.out.count(NOTED.replace("samples:", "evaluation:")) == 1
    assert printed.err == ""


def test_a_loader_that_reads_bags_one_by_one_or_labels_before_bags_count_each_bag_once(make):
    bags = Loader(BAGS, batch_size=1, collate=lambda items: items[0], shuffle=False)
    trainer = make(step_fn=loss_of_bag)
    losses = [loss_of_bag(trainer.model, *bag).item() for bag in BAGS]
    assert trainer.evaluate(bags)["loss"] == pytest.approx(sum(losses) / len(losses))
    label_first = [(y, x) for x, y in BAGS]
    swapped = make(step_fn=lambda model, y, x: loss_of_bag(model, x, y))
    assert swapped.evaluate(label_first, batch_size=None)["loss"] == pytest.approx(sum(losses) / len(losses))
