"""Resuming a run exactly where it stopped, or a clear error that changes nothing."""

import functools
import random
import re
import shutil
import signal
import time

import numpy as np
import pytest
import torch
from torch import nn

from flodl import Loader, Trainer
from flodl.checkpoint import (
    best,
    every,
    last,
    latest_bundle,
    list_bundles,
    load_checkpoint,
    read_bundle,
    save_bundle,
)
from flodl.core import CheckpointError, CursorError, TrainError
from flodl.monitor import read
from flodl.optim import CosineScheduler, PlateauScheduler, StepDecay
from flodl.train import EarlyStopping, Preempted, ReduceOnPlateau


def state_of(trainer):
    """Everything that loading could change, as comparable data."""
    tensors = [
        *trainer.model.state_dict().values(),
        *(p for g in trainer.optimizer.param_groups for p in g["params"]),
    ]
    return (
        [tensor.detach().clone().tolist() for tensor in tensors],
        len(trainer.optimizer.state),
        trainer.updates,
        trainer.history,
        torch.get_rng_state().tolist(),
        None if trainer._run.session.loader is None else trainer._run.session.loader.state_dict(),
    )


def test_auto_starts_a_run_and_resumes_it(make, data, tmp_path):
    whole = make().fit(data, epochs=3, batch_size=8)
    first = make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    second = make(checkpoint_dir=tmp_path).fit(data, epochs=3, batch_size=8)
    assert len(first.history) == 1
    assert (second.history, second.steps) == (whole.history, whole.steps)


def test_fewer_epochs_than_completed_are_rejected_and_nothing_is_lost(make, data, tmp_path, capsys):
    make(checkpoint_dir=tmp_path).fit(data, epochs=3, batch_size=8)
    kept = sorted(path.name for path in (tmp_path / "bundles").iterdir())
    rejected = make(checkpoint_dir=tmp_path, monitor=None)
    with pytest.raises(TrainError, match="epochs=1, but this run has already completed 3"):
        rejected.fit(data, epochs=1, batch_size=8)
    assert rejected.epochs == rejected.updates == 0
    printed = capsys.readouterr()
    assert "resumed" not in printed.out + printed.err
    assert sorted(path.name for path in (tmp_path / "bundles").iterdir()) == kept
    assert len(make(checkpoint_dir=tmp_path).fit(data, epochs=3, batch_size=8).history) == 3


def test_fewer_epochs_than_those_of_another_run_are_rejected_with_the_number_that_trains(
    make, data, tmp_path
):
    make(checkpoint_dir=tmp_path / "a").fit(data, epochs=2, batch_size=8)
    with pytest.raises(
        TrainError, match=r"resumed, '.*', has already completed 2, .* epochs=3 trains"
    ) as told:
        make(checkpoint_dir=tmp_path / "b").fit(data, epochs=1, batch_size=8, resume=tmp_path / "a")
    assert "checkpoint_dir" not in str(told.value)
    path = re.search(r"load_checkpoint\('(.*)', model", str(told.value))[1]
    load_checkpoint(path, make().model.state_dict())


def alerts(folder):
    return [entry.event.data["message"] for entry in read(folder) if entry.event.kind == "alert"]


def test_differences_from_the_saved_run_are_reported(make, data, tmp_path):
    def optimizer(lr):
        return lambda groups: torch.optim.SGD(groups, lr=lr, momentum=0.9)

    make(monitor=None, checkpoint_dir=tmp_path, optimizer=optimizer(0.1)).fit(data, epochs=1, batch_size=8)
    make(monitor=None, checkpoint_dir=tmp_path, optimizer=optimizer(0.1)).fit(data, epochs=2, batch_size=8)
    assert alerts(tmp_path)[-1].endswith("1 epoch done")
    again = make(monitor=None, checkpoint_dir=tmp_path, optimizer=optimizer(0.5), clip_norm=2.0)
    again.fit(data, epochs=3, batch_size=8)
    assert alerts(tmp_path)[-1].endswith(
        "2 epochs done; clip_norm is now 2.0, was None; the optimizer continues with its saved lr of 0.1, "
        "not 0.5"
    )
    assert again.optimizer.param_groups[0]["lr"] == 0.1


def test_a_rate_changed_by_a_schedule_is_not_reported(make, data, tmp_path):
    for epochs in (1, 2):
        trainer = make(monitor=None, checkpoint_dir=tmp_path, schedule=CosineScheduler(0.1, 0.01, 100))
        trainer.fit(data, epochs=epochs, batch_size=8)
    assert alerts(tmp_path)[-1].endswith("1 epoch done")


def test_a_rate_changed_by_a_hook_is_reported_only_if_the_program_sets_a_different_one(make, data, tmp_path):
    def on_epoch_end(trainer):
        trainer.scale_lr(0.5)

    def resumed(epochs, lr):
        optimizer = functools.partial(torch.optim.SGD, lr=lr)
        trainer = make(monitor=None, checkpoint_dir=tmp_path, optimizer=optimizer, hooks=[on_epoch_end])
        trainer.fit(data, epochs=epochs, batch_size=8)
        return alerts(tmp_path)[-1:]

    assert resumed(1, 0.1) == []
    assert resumed(2, 0.1)[0].endswith("1 epoch done")
    assert resumed(3, 0.1)[0].endswith("2 epochs done")
    assert resumed(4, 0.3)[0].endswith("; the optimizer continues with its saved lr of 0.0125, not 0.3")
    assert resumed(5, 0.3)[0].endswith("; the optimizer continues with its saved lr of 0.00625, not 0.3")
    assert resumed(6, 0.1)[0].endswith("5 epochs done")


@pytest.mark.parametrize("from_other", [False, True])
def test_an_optimizer_setting_that_is_ignored_is_reported_at_every_start(
    make, data, tmp_path, from_other, capsys
):
    def start(folder, epochs, decay, **how):
        optimizer = functools.partial(torch.optim.SGD, lr=0.1, weight_decay=decay)
        make(checkpoint_dir=tmp_path / folder, optimizer=optimizer).fit(
            data, epochs=epochs, batch_size=8, **how
        )
        return "continues with its saved weight_decay of 0, not 0.1" in "".join(capsys.readouterr())

    assert not start("first", 1, 0.0)
    folder, how = ("second", {"resume": tmp_path / "first"}) if from_other else ("first", {})
    assert start(folder, 2, 0.1, **how)
    assert [start(folder, epochs, 0.1, **how) for epochs in (3, 3)] == [True, True]  # also when finished
    assert not start(folder, 4, 0.0, **how)


def test_frozen_parts_that_are_restored_as_saved_are_reported_at_every_start(make, data, tmp_path, capsys):
    def start(epochs, *, freezes):
        trainer = make(checkpoint_dir=tmp_path)
        trainer.model[0].bias.requires_grad_(not freezes)
        trainer.fit(data, epochs=epochs, batch_size=8)
        return "0.bias is trainable, as it was saved" in "".join(capsys.readouterr())

    assert [start(1, freezes=False), start(2, freezes=True), start(3, freezes=True)] == [False, True, True]


def test_a_changed_ratio_of_the_rates_of_groups_is_reported_with_a_schedule(make, data, tmp_path, capsys):
    def start(epochs, body):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 1))
        groups = [{"params": model[0].parameters(), "lr": body}, {"params": model[1].parameters()}]
        settings = {"optimizer": torch.optim.SGD(groups, lr=0.1), "schedule": CosineScheduler(0.1, 0.01, 9)}
        trainer = make(model, checkpoint_dir=tmp_path, **settings)
        trainer.fit(data, epochs=epochs, batch_size=8)
        small, large = (group["lr"] for group in trainer.optimizer.param_groups)
        assert small / large == pytest.approx(0.1)
        return "".join(capsys.readouterr())

    assert start(1, 0.01) == start(2, 0.01) == ""
    said = "saved lr of 0.1 times the schedule, not 0.5 times, for a parameter group"
    assert all(said in start(epochs, 0.05) for epochs in (3, 4, 4))


def test_a_changed_base_of_a_plateau_schedule_applies(make, data, tmp_path, capsys):
    def stuck(model, x, y):
        return 0 * model(x).mean() + 1

    def rates(epochs, base):
        schedule = PlateauScheduler(base, patience=1, factor=0.5)
        trainer = make(None, stuck, checkpoint_dir=tmp_path, schedule=schedule)
        result = trainer.fit(data, epochs=epochs, batch_size=8)
        return [row["lr"] for row in result.history]

    assert rates(2, 0.1) == [0.1, 0.05]  # the rates after the epochs
    assert rates(3, 0.01) == pytest.approx([0.1, 0.05, 0.0025])
    assert "schedule is now" in "".join(capsys.readouterr())


def test_the_duration_of_a_resumed_epoch_is_that_of_all_its_starts(make, data, tmp_path):
    stopped = make(checkpoint_dir=tmp_path)
    with stopped.running(1):
        for number, batch in enumerate(stopped.epoch(data, batch_size=8)):
            stopped.step(*batch)
            if number == 1:
                time.sleep(0.2)
                stopped.save()
                break
    make(checkpoint_dir=tmp_path, monitor=None).fit(data, epochs=2, batch_size=8)
    first, second = (
        entry.event.data["duration_s"] for entry in read(tmp_path) if entry.event.kind == "epoch"
    )
    assert first > 0.2 > second


@pytest.mark.parametrize("stopped_in", ["training", "evaluation"])
def test_the_duration_of_an_epoch_that_the_same_trainer_continues_is_that_of_both_calls(
    make, data, tmp_path, stopped_in
):
    def slow_once(model, *batch):
        if not is_stopped and model.training == (stopped_in == "training"):
            if trainer.updates == 2 or not model.training:
                is_stopped.append(True)
                raise KeyboardInterrupt
            time.sleep(0.1)
        elif not is_stopped:
            time.sleep(0.1)
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    is_stopped = []
    trainer = make(None, slow_once, checkpoint_dir=tmp_path, monitor=None, dry_pass=False)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(data, epochs=2, batch_size=8, eval_data=data)
    time.sleep(1.0)  # not spent in the epoch
    trainer.save()
    assert 0.2 <= read_bundle(latest_bundle(tmp_path / "bundles"))["trainer"]["spent_s"] < 0.9
    trainer.fit(data, epochs=2, batch_size=8, eval_data=data)
    first, second = (
        entry.event.data["duration_s"] for entry in read(tmp_path) if entry.event.kind == "epoch"
    )
    assert 0.9 > first > 0.2 > second


def test_the_duration_of_an_epoch_whose_loop_was_left_is_that_of_both_loops(make, data, tmp_path):
    trainer = make(checkpoint_dir=tmp_path, monitor=None)
    with trainer.running(1):
        for batch in trainer.epoch(data, batch_size=8):
            trainer.step(*batch)
            time.sleep(0.2)
            break
        time.sleep(1.0)
        for batch in trainer.epoch(data, batch_size=8):
            trainer.step(*batch)
    (duration_s,) = (
        entry.event.data["duration_s"] for entry in read(tmp_path) if entry.event.kind == "epoch"
    )
    assert 0.2 < duration_s < 0.9


def test_the_time_before_an_interruption_counts_once_in_the_time_of_the_run(make, data, tmp_path):
    def slow(model, *batch):
        time.sleep(0.3 if trainer.updates == 0 else 0.0)
        if trainer.updates == 1 and not is_resumed:
            signal.raise_signal(signal.SIGINT)
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    settings = {"checkpoint_dir": tmp_path, "monitor": None, "dry_pass": False}
    is_resumed = False
    trainer = make(None, slow, **settings)
    with pytest.raises(Preempted):
        trainer.fit(data, epochs=1, batch_size=8)
    is_resumed = True
    trainer = make(None, slow, **settings)
    trainer.fit(data, epochs=1, batch_size=8)
    events = [entry.event for entry in read(tmp_path)]
    (epoch_s,) = (event.data["duration_s"] for event in events if event.kind == "epoch")
    before_s, after_s = (event.data["duration_s"] for event in events if event.kind == "run_end")
    assert epoch_s > 0.3
    assert before_s > 0.3 > after_s


def test_a_save_without_the_seconds_of_its_epoch_is_resumed(make, data, tmp_path):
    stopped = make(checkpoint_dir=tmp_path)
    with stopped.running(1):
        for batch in stopped.epoch(data, batch_size=8):
            stopped.step(*batch)
            break
        stopped.save()
    bundle = latest_bundle(tmp_path / "bundles")
    parts = read_bundle(bundle)
    del parts["trainer"]["spent_s"]
    save_bundle(tmp_path / "bundles", 1, parts, metadata={})
    resumed = make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    assert resumed.history == make().fit(data, epochs=1, batch_size=8).history


def test_the_saved_state_of_a_missing_hook_is_reported(make, data, tmp_path):
    hooks = [EarlyStopping("loss"), ReduceOnPlateau("loss"), EarlyStopping("loss")]
    make(monitor=None, checkpoint_dir=tmp_path, hooks=hooks).fit(data, epochs=1, batch_size=8)
    make(monitor=None, checkpoint_dir=tmp_path, hooks=hooks[:1]).fit(data, epochs=2, batch_size=8)
    assert alerts(tmp_path)[-1].split("; ")[1:] == [
        "the hook EarlyStopping was saved, but this program does not have it",
        "the hook ReduceOnPlateau was saved, but this program does not have it",
        "the number of EarlyStopping hooks is now 1, was 2: the states are assigned in order",
    ]


@pytest.mark.parametrize(("number", "reported"), [(1, True), (2, False), (3, True)])
def test_a_changed_number_of_hooks_of_one_class_is_reported(make, data, tmp_path, number, reported):
    hooks = [EarlyStopping(name) for name in ("loss", "eval_loss", "lr")]
    for epochs, some in ((1, hooks[:2]), (2, hooks[:number])):
        make(monitor=None, checkpoint_dir=tmp_path, hooks=some).fit(
            data, epochs=epochs, batch_size=8, eval_data=data
        )
    said = "; ".join(alerts(tmp_path))
    assert (f"the number of EarlyStopping hooks is now {number}, was 2" in said) == reported


def test_a_group_added_by_a_hook_is_rejected_with_advice(make, data, tmp_path):
    def build(**settings):
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
        return make(model, optimizer=optimizer, checkpoint_dir=tmp_path, **settings)

    def on_epoch_end(trainer):
        trainer.optimizer.add_param_group({"params": list(trainer.model[0].parameters())})

    build(hooks=[on_epoch_end]).fit(data, epochs=1, batch_size=8)
    words = r"groups of \[2, 2\] parameters, this one of \[2\]\..*create all of them at the start, .*Phase"
    with pytest.raises(TrainError, match=words):
        build().fit(data, epochs=2, batch_size=8)


def test_a_different_seed_of_the_trainer_is_rejected(make, data, tmp_path):
    make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    with pytest.raises(
        CursorError, match=r"this is Trainer\(seed=5\)\. Nothing was loaded\. Use Trainer\(seed=0\)"
    ):
        make(checkpoint_dir=tmp_path, seed=5).fit(data, epochs=2, batch_size=8)


@pytest.mark.parametrize("own_loader", [False, True])
def test_a_run_resumed_with_another_manual_seed_equals_one_never_stopped(make, data, tmp_path, own_loader):
    def fit(folder, epochs, seed):
        trainer = make(checkpoint_dir=folder)
        torch.manual_seed(seed)
        given = {"train_data": Loader(data, 8)} if own_loader else {"train_data": data, "batch_size": 8}
        return trainer.fit(**given, epochs=epochs, eval_data=data)

    whole = fit(tmp_path / "whole", 4, 1)
    fit(tmp_path / "resumed", 2, 1)
    assert fit(tmp_path / "resumed", 4, 2).history == whole.history
    assert fit(tmp_path / "other", 4, 2).history != whole.history


def test_different_data_is_rejected_with_advice(make, data, tmp_path):
    make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    with pytest.raises(
        CursorError, match=r"To continue with different data, start a new run .*load_checkpoint"
    ):
        make(checkpoint_dir=tmp_path).fit(tuple(part[:12] for part in data), epochs=2, batch_size=8)


@pytest.mark.parametrize("resume", ["must", True])
def test_must_requires_a_bundle(make, data, tmp_path, resume):
    with pytest.raises(TrainError, match="needs a saved run, but checkpoint_dir"):
        make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8, resume=resume)
    make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    result = make(checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=8, resume=resume)
    assert len(result.history) == 2


@pytest.mark.parametrize("resume", ["never", False])
def test_resume_never_rejects_a_folder_that_contains_a_run(make, data, tmp_path, resume):
    make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8, resume=resume)
    with pytest.raises(TrainError, match=r"contains a run up to step 3\. Choose a different checkpoint_dir"):
        make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8, resume=resume)


@pytest.mark.parametrize("own_folder", [False, True])
def test_a_run_may_start_from_the_folder_of_another(make, data, tmp_path, own_folder):
    whole = make().fit(data, epochs=3, batch_size=8)
    make(checkpoint_dir=tmp_path / "a").fit(data, epochs=1, batch_size=8)
    settings = {"checkpoint_dir": tmp_path / "b"} if own_folder else {}
    for epochs in (2, 3):
        result = make(**settings).fit(data, epochs=epochs, batch_size=8, resume=tmp_path / "a")
        assert result.history == whole.history[:epochs]
    assert len(make(checkpoint_dir=tmp_path / "a").fit(data, epochs=1, batch_size=8).history) == 1


def test_a_run_may_start_from_a_chosen_bundle_of_another(make, data, tmp_path):
    whole = make().fit(data, epochs=4, batch_size=8)
    make(checkpoint_dir=tmp_path / "a", keep=last(1) | every(1)).fit(data, epochs=3, batch_size=8)
    chosen = tmp_path / "a" / "bundles" / "step-00000003"
    for epochs in (2, 4):  # the second time it resumes from its own folder
        trainer = make(checkpoint_dir=tmp_path / "b")
        assert trainer.fit(data, epochs=epochs, batch_size=8, resume=chosen).history == whole.history[:epochs]
    assert list_bundles(tmp_path / "b" / "bundles")[0].step > 3
    assert make().fit(data, epochs=2, batch_size=8, resume=str(chosen)).history == whole.history[:2]


def test_a_bundle_that_was_copied_from_another_run_is_reported_once_with_both_origins(make, data, tmp_path):
    for name, epochs in (("a", 2), ("b", 1)):
        make(checkpoint_dir=tmp_path / name).fit(data, epochs=epochs, batch_size=4)
    newest = sorted((tmp_path / "a" / "bundles").iterdir())[-1]
    shutil.copytree(newest, tmp_path / "b" / "bundles" / newest.name)
    for epochs in (3, 4):
        make(checkpoint_dir=tmp_path / "b", monitor=None).fit(data, epochs=epochs, batch_size=4)
    first, second = (line for line in alerts(tmp_path / "b") if "resumed after" in line)
    assert "the bundle was copied from another run" in first
    assert repr(str(tmp_path / "a")) in first
    assert repr(str(tmp_path / "b")) in first
    assert second.endswith("3 epochs done")


@pytest.mark.parametrize("change", ["moved", "without config.json", "without an id"])
def test_a_run_in_a_moved_folder_or_without_a_recorded_id_is_resumed_silently(make, data, tmp_path, change):
    make(checkpoint_dir=tmp_path / "a").fit(data, epochs=1, batch_size=4)
    (tmp_path / "a").rename(tmp_path / "b")
    config = tmp_path / "b" / "config.json"
    if change == "without config.json":
        config.unlink()
    elif change == "without an id":
        config.write_text(config.read_text().replace("run_id", "other"))
    for epochs in (2, 3):
        make(checkpoint_dir=tmp_path / "b", monitor=None).fit(data, epochs=epochs, batch_size=4)
    resumed = [line for line in alerts(tmp_path / "b") if "resumed after" in line]
    assert [line.rpartition(", ")[2] for line in resumed] == ["1 epoch done", "2 epochs done"]


def test_an_older_bundle_can_be_resumed_only_in_another_folder(make, data, tmp_path):
    make(checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=8)
    older, newer = sorted((tmp_path / "bundles").iterdir())
    words = "is at step 3, and the run in the same folder is at step 6.*different checkpoint_dir"
    with pytest.raises(TrainError, match=words):
        make(checkpoint_dir=tmp_path).fit(data, epochs=3, batch_size=8, resume=older)
    newest = make(checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=8, resume=newer)
    assert newest.steps == 6
    newer.rename(tmp_path / "away")
    result = make(checkpoint_dir=tmp_path).fit(data, epochs=3, batch_size=8, resume=older)
    assert result.history == make().fit(data, epochs=3, batch_size=8).history


def test_a_relative_folder_is_resolved_when_it_is_passed(make, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    make(checkpoint_dir="run").fit(data, epochs=1, batch_size=8)
    (tmp_path / "elsewhere").mkdir()

    def on_start():
        monkeypatch.chdir(tmp_path / "elsewhere")

    for place in ("run", "~/run"):
        monkeypatch.chdir(tmp_path)
        assert make(hooks=[on_start]).fit(data, epochs=2, batch_size=8, resume=place).steps == 6


def test_a_folder_without_a_run_raises(make, data, tmp_path):
    with pytest.raises(TrainError, match="or a folder with an intact bundle"):
        make().fit(data, epochs=1, batch_size=8, resume=tmp_path)


def test_a_finished_run_returns_immediately(make, data, tmp_path):
    done = make(checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=8, eval_data=data)

    def never(model, x, y):
        raise AssertionError("nothing is left to train")

    saved = sorted((tmp_path / "bundles").iterdir())
    again = make(step_fn=never, checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=8, eval_data=data)
    assert (again.history, again.steps, again.status) == (done.history, done.steps, "finished")
    assert sorted((tmp_path / "bundles").iterdir()) == saved


def test_the_batch_size_may_change_and_every_sample_comes_once(make, data, tmp_path):
    class Seen:
        def __init__(self):
            self.samples = []

        def on_step_end(self, trainer, batch, step):
            self.samples += batch[0][:, 0].tolist()
            if step == 2 and trainer.epochs == 0:
                trainer.stop("to change the batch size")

    first, second = Seen(), Seen()
    make(hooks=[first], checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=4)
    result = make(hooks=[second], checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=6)
    assert sorted(first.samples + second.samples) == sorted(data[0][:, 0].tolist())
    assert (len(first.samples), result.steps) == (8, 2 + 2)


class Grown(nn.Sequential):
    """A model with an additional part."""


def other_models():
    small = [nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.0)]
    return {
        "a shape": (
            nn.Sequential(*small, nn.Linear(8, 2)),
            r"'3.weight' has shape \(1, 8\) there and \(2, 8\)",
        ),
        "more": (nn.Sequential(*small, nn.Linear(8, 1), nn.Linear(1, 1)), "it has no '4.weight'"),
        "less": (nn.Sequential(nn.Linear(3, 8)), "it has '3.weight', which this model does not have"),
    }


@pytest.mark.parametrize("kind", ["a shape", "more", "less"])
def test_a_different_model_is_rejected_and_nothing_changes(make, data, tmp_path, kind):
    make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    model, words = other_models()[kind]
    trainer = make(model, checkpoint_dir=tmp_path)
    trainer.loader(data, 8)
    before = state_of(trainer)
    with pytest.raises(TrainError, match=f"belongs to a different model: {words}.* Nothing was loaded"):
        trainer.fit(data, epochs=2, batch_size=8)
    assert state_of(trainer) == before


@pytest.mark.parametrize(
    ("saved", "own", "words"),
    [
        ({}, {"precision": "bf16"}, "saved with precision 'fp32', and this trainer uses 'bf16'"),
        ({}, {"schedule": StepDecay(0.1, 5, 0.5)}, "saved with schedule 'no schedule', .*'StepDecay'"),
        (
            {"schedule": CosineScheduler(0.1, 0.0, 9)},
            {"schedule": StepDecay(0.1, 5, 0.5)},
            "schedule 'CosineScheduler', and this trainer uses 'StepDecay'",
        ),
        (
            {},
            {"optimizer": lambda groups: torch.optim.Adam(groups)},
            "saved with optimizer 'SGD', and this trainer uses 'Adam'",
        ),
        (
            {},
            {
                "optimizer": lambda groups: torch.optim.SGD(
                    [{"params": [p]} for p in groups[0]["params"]], 0.1
                )
            },
            r"groups of \[4\] parameters, this one of \[1, 1, 1, 1\]",
        ),
    ],
)
def test_a_different_step_is_rejected_and_nothing_changes(make, data, tmp_path, saved, own, words):
    make(checkpoint_dir=tmp_path, **saved).fit(data, epochs=1, batch_size=8)
    torch.manual_seed(3)
    trainer = make(checkpoint_dir=tmp_path, **own)
    trainer.loader(data, 8)
    before = state_of(trainer)
    with pytest.raises(TrainError, match=words):
        trainer.fit(data, epochs=2, batch_size=8)
    assert state_of(trainer) == before


def in_order(*names):
    def model_and_optimizer():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1))
        parameters = dict(model.named_parameters())
        return model, torch.optim.Adam([{"params": [parameters[name] for name in group]} for group in names])

    return model_and_optimizer


@pytest.mark.parametrize(
    ("saved", "own", "words"),
    [
        (
            in_order(["0.weight", "1.weight"]),
            in_order(["1.weight", "0.weight"]),
            "parameter 0 of group 0 of the optimizer is '1.weight', and it was saved as '0.weight'",
        ),
        (
            in_order(["0.weight"], ["1.weight"]),
            in_order(["0.weight"], ["2.weight"]),
            "parameter 0 of group 1 of the optimizer is '2.weight', and it was saved as '1.weight'",
        ),
    ],
)
def test_parameters_in_a_different_order_are_rejected_and_nothing_changes(
    make, data, tmp_path, saved, own, words
):
    model, optimizer = saved()
    make(model, optimizer=optimizer, checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    model, optimizer = own()
    trainer = make(model, optimizer=optimizer, checkpoint_dir=tmp_path)
    trainer.loader(data, 8)
    before = state_of(trainer)
    with pytest.raises(TrainError, match=f"{words}.*Nothing was loaded"):
        trainer.fit(data, epochs=2, batch_size=8)
    assert state_of(trainer) == before


@pytest.mark.parametrize("change", ["seed", "data", "order"])
def test_different_data_is_rejected_and_nothing_changes(make, data, tmp_path, change):
    make(checkpoint_dir=tmp_path).fit(Loader(data, 8), epochs=1)
    loaders = {
        "seed": lambda: Loader(data, 8, seed=5),
        "data": lambda: Loader(tuple(part[:12] for part in data), 8),
        "order": lambda: Loader(data, 8, shuffle=False),
    }
    trainer, loader = make(checkpoint_dir=tmp_path), loaders[change]()
    trainer.loader(loader)
    before = state_of(trainer)
    with pytest.raises(CursorError):
        trainer.fit(loader, epochs=2)
    assert state_of(trainer) == before


def test_a_schedule_of_the_same_kind_may_be_stretched(make, data, tmp_path):
    make(checkpoint_dir=tmp_path, schedule=CosineScheduler(0.1, 0.0, 6)).fit(data, epochs=1, batch_size=8)
    longer = make(checkpoint_dir=tmp_path, schedule=CosineScheduler(0.1, 0.0, 12))
    result = longer.fit(data, epochs=2, batch_size=8)
    assert result.metrics["lr"] == pytest.approx(CosineScheduler(0.1, 0.0, 12).lr(6))


def test_lazy_modules_take_the_shapes_that_were_saved(make, data, tmp_path):
    def lazy():
        torch.manual_seed(0)
        return nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(1))

    whole = make(lazy())
    whole.fit(data, epochs=2, batch_size=8)
    for epochs in (1, 2):
        trainer = make(lazy(), checkpoint_dir=tmp_path)
        trainer.fit(data, epochs=epochs, batch_size=8)
    assert torch.equal(trainer.model[0].weight, whole.model[0].weight)
    assert trainer.history == whole.history


def test_weights_that_the_dtype_of_the_model_cannot_represent_are_rejected(make, data, tmp_path):
    model = nn.Sequential(nn.Linear(3, 1))
    with torch.no_grad():
        model[0].bias.fill_(1e6)
    make(model, checkpoint_dir=tmp_path, optimizer=lambda groups: torch.optim.SGD(groups, lr=0.0)).fit(
        data, epochs=1, batch_size=8
    )
    half = make(nn.Sequential(nn.Linear(3, 1)).half(), checkpoint_dir=tmp_path)
    before = half.model[0].weight.detach().clone()
    with pytest.raises(CheckpointError, match=r"at '0\.bias': the saved run has the value 1000000\.0"):
        half.fit(tuple(part.half() for part in data), epochs=2, batch_size=8)
    assert torch.equal(half.model[0].weight, before)


def test_folders_not_named_like_bundles_are_reported_when_a_run_starts_over(make, data, tmp_path, capsys):
    make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    (bundle,) = list_bundles(tmp_path / "bundles")
    good = bundle.path.rename(bundle.path.with_name("step-00000003-good"))
    (tmp_path / "bundles" / ".step-00000009.part").mkdir()
    capsys.readouterr()
    assert make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8).steps == 3
    reported = "".join(capsys.readouterr())
    assert "starting from scratch; these folders in" in reported
    assert "are ignored: step-00000003-good." in reported
    result = make(checkpoint_dir=tmp_path / "other").fit(data, epochs=2, batch_size=8, resume=good)
    assert result.steps == 6
    assert "starting from scratch" not in "".join(capsys.readouterr())


def test_a_bundle_that_was_not_saved_by_a_trainer_raises(make, data, tmp_path):
    save_bundle(tmp_path / "bundles", 3, {"model": {"w": torch.ones(1)}})
    with pytest.raises(TrainError, match="has no part 'optimizer', so it was not saved by a trainer"):
        make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)


def test_a_damaged_bundle_is_skipped(make, data, tmp_path, caplog):
    make(checkpoint_dir=tmp_path).fit(data, epochs=2, batch_size=8)
    newest = max((tmp_path / "bundles").iterdir())
    (newest / "model.fdl").write_bytes(b"nonsense")
    result = make(checkpoint_dir=tmp_path).fit(data, epochs=3, batch_size=8)
    assert result.history == make().fit(data, epochs=3, batch_size=8).history


def test_all_random_generators_continue(make, data, tmp_path):
    def noisy(model, x, y):
        noise = random.random() + np.random.rand() + torch.rand(()).item()
        return nn.functional.mse_loss(model(x), y) * noise

    def history(folder, *stops):
        for until in stops:
            random.seed(1), np.random.seed(1), torch.manual_seed(1)
            result = make(step_fn=noisy, checkpoint_dir=tmp_path / folder).fit(
                data, epochs=until, batch_size=8
            )
        return result.history

    outside = random.getstate(), np.random.get_state()
    assert history("whole", 4) == history("parts", 1, 3, 4)
    random.setstate(outside[0]), np.random.set_state(outside[1])


def test_carried_values_are_restored(make, tmp_path):
    from flodl import FlowBuilder

    class Leaky(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(3, 3)

        def forward(self, x, before=None):
            return self.line(x) + (0 if before is None else 0.5 * before)

    def model():
        torch.manual_seed(0)
        return FlowBuilder(Leaky()).using("before").tag("before").through(nn.Linear(3, 1)).build()

    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
    data = x, x.sum(1, keepdim=True)
    slow = {"optimizer": lambda groups: torch.optim.SGD(groups, lr=0.01)}
    whole = make(model(), **slow).fit(data, epochs=3, batch_size=4)
    for until in (1, 2, 3):
        result = make(model(), checkpoint_dir=tmp_path, **slow).fit(data, epochs=until, batch_size=4)
    assert result.history == whole.history


@pytest.mark.parametrize("resume", ["atuo", "/nowhere", "", None, 3])
def test_an_invalid_resume_argument_is_rejected_even_if_there_is_a_run(tmp_path, resume):
    def trainer():
        model = torch.nn.Linear(2, 1)
        return Trainer(
            model,
            lambda model, x: model(x).square().mean(),
            optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
            device="cpu",
            monitor=False,
            checkpoint_dir=tmp_path,
        )

    trainer().fit(torch.ones(4, 2), epochs=1, batch_size=2)
    with pytest.raises(TrainError, match="is not 'auto', 'must', 'never' or a folder"):
        trainer().fit(torch.ones(4, 2), epochs=2, batch_size=2, resume=resume)


def test_optimizer_parameters_outside_the_model_are_restored_too(data, tmp_path):
    def trained(epochs, width=1, **settings):
        torch.manual_seed(0)
        model, weight = nn.Linear(3, 1), nn.Parameter(torch.zeros(width))

        def loss(model, x, y):
            return ((model(x) - y).square() * torch.exp(-weight) + weight).mean()

        optimizer = torch.optim.Adam([*model.parameters(), weight], lr=0.05)
        trainer = Trainer(model, loss, optimizer=optimizer, device="cpu", tier="eager", **settings)
        return trainer.fit(data, epochs=epochs, batch_size=8).history, weight

    trained(2, checkpoint_dir=tmp_path)
    history, weight = trained(4, checkpoint_dir=tmp_path)
    whole, expected = trained(4)
    assert history == whole
    assert torch.equal(weight, expected)
    with pytest.raises(
        TrainError, match=r"parameter 2 of group 0 .* has shape \(2,\), and it was saved with \(1,\)"
    ):
        trained(5, width=2, checkpoint_dir=tmp_path)


def test_the_message_about_a_resume_says_how_far_the_run_had_come(make, data, tmp_path):
    def run(epochs, *, stop_at=None):
        def on_step_end(trainer, step):
            if step == stop_at:
                trainer.stop()

        trainer = make(checkpoint_dir=tmp_path, monitor=None, hooks=[on_step_end])
        trainer.fit(data, epochs=epochs, batch_size=5)
        return [line.partition(";")[0] for line in alerts(tmp_path) if line.startswith("resumed")]

    run(1, stop_at=1)
    run(2, stop_at=6)
    run(2)
    assert run(3) == [
        "resumed after 1 update, in epoch 1",
        "resumed after 6 updates, in epoch 2",
        "resumed after 8 updates, 2 epochs done",
    ]


def test_other_evaluation_data_restarts_the_early_stopping_comparison(make, data, tmp_path):
    def start(epochs, labels, *, trainer=None):
        stopping = EarlyStopping("eval_loss", patience=2)
        trainer = trainer or make(
            hooks=[stopping], checkpoint_dir=tmp_path, keep=best("eval_loss"), monitor=None, seed=0
        )
        trainer.fit(data, epochs=epochs, batch_size=8, eval_data=(data[0], labels))
        told = [entry.event.data["message"] for entry in read(tmp_path) if entry.event.kind == "alert"]
        return trainer, [line for line in told if "starts from scratch" in line]

    start(2, data[1])
    _, told = start(3, data[1])
    assert told == []
    # Much higher losses: a comparison with those before would end the run.
    trainer, told = start(6, data[1] + 100.0)
    assert trainer.epochs == 6
    assert len(told) == 1
    assert "eval_data" in told[0]
    reason = "starts from scratch: its best value was computed on different evaluation data"
    assert f"EarlyStopping('eval_loss') {reason}" in told[0]
    assert "compares values of different evaluation data" in told[0]
    trainer, told = start(9, data[1] + 200.0, trainer=trainer)
    assert (trainer.epochs, len(told)) == (9, 2)
