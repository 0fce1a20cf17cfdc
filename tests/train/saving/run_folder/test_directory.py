"""A run has one folder: its settings, its journal, and bundles to resume from."""

import contextlib
import fcntl
import json
import os
import threading

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, Monitor, load_checkpoint
from flodl.checkpoint import best, every, last, list_bundles, read_bundle
from flodl.core import TrainError
from flodl.monitor import read
from flodl.monitor.snapshot import snapshot


def steps_in(folder):
    bundles = folder / "bundles"
    return [bundle.step for bundle in list_bundles(bundles)] if bundles.is_dir() else []


def graph():
    torch.manual_seed(0)
    return FlowBuilder(nn.Linear(3, 8)).through(nn.Tanh()).through(nn.Linear(8, 1)).tag("output").build()


def test_the_folder_has_settings_journal_picture_and_bundles(make, data, tmp_path, monkeypatch, capsys):
    started_with = {"lr": {"value": 0.1, "origin": "fdl.yml:12"}}
    monkeypatch.setenv("FLODL_RESOLVED_CONFIG", json.dumps(started_with))
    trainer = make(graph(), checkpoint_dir=tmp_path / "run", monitor=None, nan="skip")
    result = trainer.fit(data, epochs=2, batch_size=8, eval_data=data)
    assert result.run_dir == trainer.run_dir == tmp_path / "run"
    assert {"config.json", "journal.jsonl", "graph.svg", "bundles"} <= {
        p.name for p in result.run_dir.iterdir()
    }
    config = json.loads((result.run_dir / "config.json").read_text())
    assert config["started_with"] == started_with
    assert (
        config["trainer"] | {"epochs": 2, "batch_size": 8, "optimizer": "SGD", "nan": "skip"}
        == config["trainer"]
    )
    kinds = [entry.event.kind for entry in read(result.run_dir)]
    assert kinds.count("epoch") == kinds.count("save") == 2
    assert (kinds[0], kinds[-1]) == ("run_start", "run_end")
    assert "epoch 2/2" in capsys.readouterr().out
    assert steps_in(result.run_dir) == [3, 6]


def test_a_monitor_of_the_user_records_the_same_settings(make, data, tmp_path):
    make(checkpoint_dir=tmp_path / "own", monitor=None).fit(data, epochs=2, batch_size=8)
    with Monitor(0, tmp_path / "user", config={"note": "x"}, console=False, resources=False) as monitor:
        make(monitor=monitor).fit(data, epochs=2, batch_size=8)
    own, user = (snapshot(tmp_path / name) for name in ("own", "user"))
    settings = {entry["path"]: entry["value"] for entry in user["config"]}
    assert settings.pop("note") == "x"
    # A run without a folder keeps no bundles.
    assert settings == {entry["path"]: entry["value"] for entry in own["config"]} | {"keep": None}
    assert user["status"]["total_epochs"] == 2


@pytest.mark.parametrize("number", [2**70, 10**9, 2, -1, "x"])
def test_a_damaged_journal_line_is_named_and_does_not_stop_a_resume(make, data, tmp_path, capsys, number):
    make(checkpoint_dir=tmp_path, monitor=None).fit(data, epochs=2, batch_size=8)
    lines = (tmp_path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    damaged = json.dumps({**json.loads(lines[3]), "id": number}).encode() + b"\n"
    (tmp_path / "journal.jsonl").write_bytes(b"".join([*lines[:5], damaged, *lines[5:]]))
    capsys.readouterr()
    result = make(checkpoint_dir=tmp_path, monitor=None).fit(data, epochs=4, batch_size=8)
    assert len(result.history) == 4
    assert [record["epoch"] for record in snapshot(tmp_path)["history"]] == [1, 2, 3, 4]
    assert "journal.jsonl: skipped 1 damaged line (line 6)." in capsys.readouterr().out


def test_the_journal_contains_the_settings_of_the_run_and_their_origins(make, data, tmp_path, monkeypatch):
    started_with = {
        "lr": {"value": 0.1, "origin": "fdl.yml:12"},
        "batch-size": {"value": 8, "origin": "--batch-size"},
        "epochs": {"value": 7, "origin": "fdl.yml:13"},
    }
    monkeypatch.setenv("FLODL_RESOLVED_CONFIG", json.dumps(started_with))
    make(checkpoint_dir=tmp_path, monitor=None).fit(data, epochs=1, batch_size=8)
    reported = {entry["path"]: entry for entry in next(iter(read(tmp_path))).event.data["config"]}
    assert (reported["lr"]["value"], reported["lr"]["origin"]) == (0.1, "fdl.yml:12")
    assert (reported["batch_size"]["value"], reported["batch_size"]["origin"]) == (8, "--batch-size")
    # The program passed a different number than the manifest, so that number has no origin.
    assert (reported["epochs"]["value"], reported["epochs"].get("origin") or "") == (1, "")


def test_the_journal_records_how_a_run_ended(make, data, tmp_path):
    def on_epoch_end(trainer):
        trainer.stop("enough")

    def on_step_end():
        raise ValueError("mine")

    def end_of(folder, *hooks):
        trainer = make(checkpoint_dir=tmp_path / folder, hooks=hooks, monitor=None)
        with contextlib.suppress(ValueError):
            trainer.fit(data, epochs=2, batch_size=8)
        data_of_end = list(read(tmp_path / folder))[-1].event.data
        return data_of_end["status"], data_of_end.get("message")

    assert end_of("a") == ("finished", None)
    assert end_of("b", on_epoch_end) == ("stopped", "enough")
    assert end_of("c", on_step_end) == ("failed", "ValueError: mine")


def test_a_bundle_contains_the_whole_run_and_a_model_that_loads_anywhere(make, data, tmp_path):
    trainer = make(checkpoint_dir=tmp_path)
    trainer.fit(data, epochs=1, batch_size=8)
    (bundle,) = list_bundles(tmp_path / "bundles")
    assert set(read_bundle(bundle)) >= {"model", "optimizer", "step", "rng", "data", "history", "hooks"}
    twin = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(), nn.Linear(8, 1))
    load_checkpoint(bundle.path / "model.fdl", twin.state_dict())
    assert torch.equal(twin[0].weight, trainer.model[0].weight)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, [12, 15]),
        ({"keep": last(1)}, [15]),
        ({"keep": every(6) | last(1)}, [6, 12, 15]),
        ({"save_every": 2, "keep": last(9)}, [6, 12, 15]),
        ({"save_every": None}, []),
        ({"save_every": None, "save_every_steps": 4, "keep": last(9)}, [4, 8, 12, 15]),
        ({"save_every_steps": 5, "keep": last(9)}, [3, 5, 6, 9, 10, 12, 15]),
    ],
)
def test_saves_happen_when_requested_and_at_the_end(make, data, tmp_path, settings, steps):
    make(checkpoint_dir=tmp_path, **settings).fit(data, epochs=5, batch_size=8)
    assert steps_in(tmp_path) == steps


def test_the_best_bundle_is_kept_and_a_save_within_an_epoch_does_not_count_as_best(make, data, tmp_path):
    made = iter([3.0, 1.0, 2.0, 2.5])

    class Made:
        def on_evaluate_end(self, metrics):
            metrics["made"] = next(made)

        def on_epoch_end(self, trainer, metrics):
            trainer.history[-1]["made"] = metrics["made"] = next(made)

    settings = {"keep": best("made"), "save_every_steps": 2, "hooks": [Made()]}
    make(checkpoint_dir=tmp_path, **settings).fit(data, epochs=4, batch_size=8)
    bundles = list_bundles(tmp_path / "bundles")
    assert [(bundle.step, bundle.metrics.get("made")) for bundle in bundles] == [(6, 1.0), (12, 2.5)]


def test_a_save_is_reported_once_it_is_on_disk_and_training_does_not_wait_for_it(make, data, tmp_path):
    (tmp_path / "run" / "bundles").mkdir(parents=True)
    held_up = os.open(tmp_path / "run" / "bundles", os.O_RDONLY)
    fcntl.flock(held_up, fcntl.LOCK_EX)  # the writer waits for it
    reported, received = [], []

    class Watch:
        def on_epoch_end(self, trainer, epoch):
            if epoch == 1:
                # The first epoch was saved three updates ago.
                assert (trainer.updates, reported, received) == (6, [], [])
                os.close(held_up)

        def on_save(self, step, path, metrics):
            assert path.is_dir()
            assert threading.current_thread() is threading.main_thread()
            received.append((step, path.name, sorted(metrics)))

        def on_end(self):
            received.append("end")

    def note(event):
        if event.kind == "save":
            reported.append((event.data["path"], event.data["reason"]))
            assert (tmp_path / "run" / event.data["path"]).is_dir()
            assert event.data["duration_s"] > 0

    with Monitor(console=False, views=[note]) as monitor:
        trainer = make(checkpoint_dir=tmp_path / "run", monitor=monitor, hooks=[Watch()], keep=last(9))
        trainer.fit(data, epochs=3, batch_size=8)
    assert reported == [(f"bundles/step-0000000{3 * n}", f"epoch {n}") for n in (1, 2, 3)]
    assert received == [*((3 * n, f"step-0000000{3 * n}", ["loss", "lr"]) for n in (1, 2, 3)), "end"]
    entries = [entry.event for entry in read(monitor.run_dir)]
    assert [event.data["path"] for event in entries if event.kind == "save"] == [path for path, _ in reported]


def test_a_step_that_is_saved_again_is_reported_with_its_real_name(make, data, tmp_path):
    paths = []

    class Twice:
        def on_epoch_end(self, trainer):
            trainer.save(reason="by hand")

        def on_save(self, path):
            paths.append(path.name)

    make(checkpoint_dir=tmp_path, hooks=[Twice()]).fit(data, epochs=1, batch_size=8)
    assert paths == ["step-00000003", "step-00000003.2"]


@pytest.mark.parametrize("keep", [None, last(1), best("loss")])
def test_a_bundle_exists_during_on_save_although_the_next_save_replaces_it(make, data, tmp_path, keep):
    paths = []

    def on_save(path):
        assert path.is_dir()
        paths.append(path.name)

    settings = {"save_every_steps": 1, "keep": keep, "hooks": [on_save]}
    make(checkpoint_dir=tmp_path, **settings).fit(data, epochs=2, batch_size=10)
    steps = ["step-00000001", "step-00000002", "step-00000002.2"]
    assert paths == [*steps, "step-00000003", "step-00000004", "step-00000004.2"]


def test_a_deleted_bundle_is_not_reported(make, data, tmp_path):
    paths = []

    def on_save(path):
        paths.append(path)

    trainer = make(checkpoint_dir=tmp_path, hooks=[on_save])
    trainer._run.directory.save(0, {"model": {}}, {}, reason="", wait=True)
    (bundle,) = list_bundles(tmp_path / "bundles")
    bundle.path.rename(tmp_path / "elsewhere")
    trainer.fit(data, epochs=1, batch_size=20)
    assert [path.name for path in paths] == ["step-00000001"]


def test_a_manual_save_outside_a_run_is_reported_too(make, tmp_path):
    steps = []

    def on_save(step):
        steps.append(step)

    make(checkpoint_dir=tmp_path, hooks=[on_save]).save()
    assert steps == [0]


@pytest.mark.parametrize("with_folder", [False, True])
@pytest.mark.parametrize("monitor", [True, False, None])
def test_where_a_run_is_reported(make, data, tmp_path, capsys, monitor, with_folder):
    folder = {"checkpoint_dir": tmp_path / "run"} if with_folder else {}
    make(monitor=monitor, **folder).fit(data, epochs=1, batch_size=8)
    printed = capsys.readouterr().out
    assert ("live page" in printed) == (monitor is True)
    assert ("epoch 1/1" in printed) == (monitor is not False)
    assert (tmp_path / "run" / "journal.jsonl").exists() == (with_folder and monitor is not False)


def test_a_custom_monitor_stays_open_and_is_shown_the_model_once(make, data):
    with Monitor(console=False, step_rate=None) as monitor:
        trainer = make(monitor=monitor, log_every=1)
        trainer.fit(data, epochs=1, batch_size=8)
        trainer.fit(data, epochs=2, batch_size=8)
        assert [record["epoch"] for record in monitor.history] == [1, 2]
        assert len(monitor._watched._steps) == 1
    kinds = [entry.event.kind for entry in read(monitor.run_dir)]
    assert kinds.count("metrics") == 6
    assert kinds.count("run_end") == 1


def test_an_invalid_monitor_is_rejected(make, data):
    with pytest.raises(TrainError, match=r"monitor='page'\. Use a Monitor, True for a live page"):
        make(monitor="page").fit(data, epochs=1, batch_size=8)


def test_a_graph_keeps_the_metrics_of_fit_and_those_of_hooks(make, data):
    def on_step_end(trainer, loss):
        trainer.model.record("twice", loss * 2)

    trainer = make(graph(), hooks=[on_step_end])
    result = trainer.fit(data, epochs=3, batch_size=10, eval_data=data)
    assert trainer.model.trend("loss").values == [row["loss"] for row in result.history]
    latest = trainer.model.latest_metrics()
    assert set(latest) == {"loss", "lr", "eval_loss", "twice"}
    assert latest["eval_loss"] == result.metrics["eval_loss"]
    assert latest["twice"] == pytest.approx(2 * result.metrics["loss"], rel=1e-6)
    assert trainer.model.epoch_count == 3


def test_the_metrics_of_a_graph_are_restored_after_a_resume(make, data, tmp_path):
    def on_step_end(trainer, loss, step):
        trainer.model.record("twice", loss * 2)
        if step == 3 and trainer.epochs == 1:
            trainer.stop("for now")

    def run(folder, *stops):
        for hooks in stops:
            trainer = make(graph(), hooks=hooks, checkpoint_dir=tmp_path / folder)
            trainer.fit(data, epochs=3, batch_size=10)
        return trainer.model

    def keep_recording(trainer, loss):
        trainer.model.record("twice", loss * 2)

    keep_recording.__name__ = "on_step_end"
    whole, parts = run("whole", [keep_recording]), run("parts", [on_step_end], [keep_recording])
    assert parts.trend("twice").values == whole.trend("twice").values
    assert parts.latest_metrics() == whole.latest_metrics()


def test_the_result_names_the_best_epoch(make, data):
    result = make().fit(data, epochs=3, batch_size=8)
    assert result.best("loss")["loss"] == min(row["loss"] for row in result.history)
    assert result.best("loss", mode="max")["epoch"] == 1


def test_the_losses_of_short_epochs_are_reported_too(make, data):
    with Monitor(console=False, step_rate=None) as monitor:
        make(monitor=monitor).fit(data, epochs=2, batch_size=8)
    steps = [entry.event.data["step"] for entry in read(monitor.run_dir) if entry.event.kind == "metrics"]
    assert len(steps) > 2
    assert steps == sorted(set(steps))


def test_a_run_stays_in_its_folder_when_the_working_directory_changes(make, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()

    def on_epoch_end(epoch):
        if epoch == 0:
            monkeypatch.chdir(tmp_path / "elsewhere")

    result = make(checkpoint_dir="run", hooks=[on_epoch_end], monitor=None).fit(data, epochs=2, batch_size=8)
    assert result.run_dir == tmp_path / "run"
    assert steps_in(tmp_path / "run") == [3, 6]
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_folder_may_be_relative_to_the_home_folder(make, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert make(checkpoint_dir="~/runs/a").run_dir == tmp_path / "runs" / "a"


@pytest.mark.parametrize("given", [3, b"run"])
def test_a_folder_that_is_not_a_path_is_rejected(make, given):
    with pytest.raises(TrainError, match=r"checkpoint_dir=.*Pass the path of a folder"):
        make(checkpoint_dir=given)


@pytest.mark.parametrize("monitor", [None, False])
def test_a_run_with_bundles_continues_although_its_folder_is_not_writable(
    make, data, tmp_path, capsys, monitor
):
    resource = pytest.importorskip("resource")
    make(checkpoint_dir=tmp_path, monitor=monitor).fit(data, epochs=1, batch_size=8)
    capsys.readouterr()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        steps = make(checkpoint_dir=tmp_path, monitor=monitor).fit(data, epochs=2, batch_size=8).steps
        with pytest.raises(TrainError, match="cannot write the run directory"):
            make(checkpoint_dir=tmp_path, when_disk_fails="stop").fit(data, epochs=2, batch_size=8)
        with pytest.raises(TrainError, match="cannot write the run directory"):
            make(checkpoint_dir=tmp_path / "other").fit(data, epochs=2, batch_size=8)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert steps == 6
    reported = "".join(capsys.readouterr())
    assert reported.count("cannot write the run directory") == 1


@pytest.mark.parametrize("path", ["file", "file/inside"])
def test_a_file_in_place_of_the_folder_is_rejected_at_once(make, tmp_path, path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(TrainError, match=r"file' is a file. Pass a folder\."):
        make(checkpoint_dir=tmp_path / path)


def test_an_empty_checkpoint_dir_is_rejected(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrainError, match=r"checkpoint_dir='' is empty\. Pass the path of a folder; '\.' is"):
        make(checkpoint_dir="")
    assert make(checkpoint_dir=".").run_dir == tmp_path


@pytest.mark.parametrize("inner", ["bundles", "bundles/step-00000003"])
def test_a_bundle_or_a_folder_of_bundles_cannot_be_a_checkpoint_dir(make, data, tmp_path, inner):
    run = tmp_path / "run"
    make(checkpoint_dir=run).fit(data, epochs=1, batch_size=8)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    words = f"pass its folder: checkpoint_dir={str(run)!r}.*resume={str(run / inner)!r}"
    with pytest.raises(TrainError, match=words):
        make(checkpoint_dir=run / inner)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    resumed = make(checkpoint_dir=tmp_path / "new").fit(data, epochs=2, batch_size=8, resume=run / inner)
    assert resumed.steps == 6


def test_a_run_may_have_a_folder_named_bundles(make, data, tmp_path):
    for epochs in (1, 2):
        make(checkpoint_dir=tmp_path / "bundles").fit(data, epochs=epochs, batch_size=8)
    assert steps_in(tmp_path / "bundles") == [3, 6]


def test_several_policies_in_a_list_are_an_error_with_the_right_call(make, tmp_path):
    message = (
        r"keep=\[last\(1\), best\('loss', 1.*\)\]\. Use a policy .* such as last\(1\) \| best\('loss', 1"
    )
    with pytest.raises(TrainError, match=message):
        make(checkpoint_dir=tmp_path / "run", keep=[last(1), best("loss")])
