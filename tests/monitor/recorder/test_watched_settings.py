"""The settings of watched objects: two runs that differ in one of them are not equal in a comparison."""

import argparse
import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from flodl import Monitor, Trainer, TrainStep
from flodl.core import MonitorError
from flodl.core.environment import RESOLVED_CONFIG
from flodl.monitor import Event, Journal, read
from flodl.monitor.exports import comparison_json
from flodl.monitor.snapshot import snapshot
from flodl.optim import CosineScheduler, StepDecay, apply


def loss_of(model, x):
    return model(x).square().mean()


def settings(folder):
    return {item["path"]: item["value"] for item in snapshot(folder)["config"]}


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **options})


def with_step(folder, *, width=2, lr=0.1, momentum=0.9, weight_decay=0.0, **options):
    torch.manual_seed(0)
    model = nn.Linear(2, width)
    optimizer = sgd(model, lr=lr, momentum=momentum, weight_decay=weight_decay)
    step = TrainStep(model, optimizer, loss_of, **{"tier": "eager", **options})
    with Monitor(1, folder, console=False, resources=False) as monitor:
        monitor.watch(step)
        monitor.log(0, {"loss": step(torch.ones(4, 2))}, duration=1.0)
    return folder


def with_plain_loop(folder, *, width=2, lr=0.1, momentum=0.9, weight_decay=0.0, gamma=0.5, seed=0):
    torch.manual_seed(seed)
    model = nn.Linear(2, width)
    optimizer = sgd(model, lr=lr, momentum=momentum, weight_decay=weight_decay)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=gamma)
    with Monitor(1, folder, console=False, resources=False) as monitor:
        for thing in (model, optimizer, scheduler):
            monitor.watch(thing)
        loss_of(model, torch.ones(4, 2)).backward()
        optimizer.step()
        scheduler.step()
        monitor.log(0, {"loss": 0.5}, duration=1.0)
    return folder


def differing(*folders):
    return json.loads(comparison_json([*folders]))["differing"]


@pytest.mark.parametrize("run", [with_step, with_plain_loop])
def test_equal_runs_differ_in_nothing(run, tmp_path):
    assert differing(run(tmp_path / "a"), run(tmp_path / "b")) == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"lr": 0.2}, "optimizer_settings.lr"),
        ({"momentum": 0.5}, "optimizer_settings.momentum"),
        ({"weight_decay": 0.1}, "optimizer_settings.weight_decay"),
        ({"width": 3}, "model.modules.(root)"),
    ],
    ids=str,
)
@pytest.mark.parametrize("run", [with_step, with_plain_loop])
def test_runs_with_another_setting_differ_in_it(run, change, path, tmp_path):
    assert path in differing(run(tmp_path / "a"), run(tmp_path / "b", **change))


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"clip_norm": 1.0}, "clip_norm"),
        ({"accumulate": 2}, "accumulate"),
        ({"schedule": CosineScheduler(0.1, 0.01, 10)}, "schedule"),
    ],
    ids=str,
)
def test_the_settings_of_a_training_step_are_compared(change, path, tmp_path):
    found = differing(with_step(tmp_path / "a"), with_step(tmp_path / "b", **change))
    assert [one for one in found if not one.startswith("(")] == [path]


def test_two_schedules_of_one_kind_are_told_apart(tmp_path):
    first = with_step(tmp_path / "a", schedule=CosineScheduler(0.1, 0.01, 10))
    assert differing(first, with_step(tmp_path / "b", schedule=CosineScheduler(0.1, 0.01, 20))) == [
        "schedule"
    ]
    first = with_plain_loop(tmp_path / "c")
    assert differing(first, with_plain_loop(tmp_path / "d", gamma=0.1)) == ["schedule.gamma"]


def test_another_seed_is_a_difference(tmp_path):
    first, second = with_plain_loop(tmp_path / "a"), with_plain_loop(tmp_path / "b", seed=1)
    assert differing(first, second) == ["torch.initial_seed"]


def test_another_step_function_or_value_that_it_reads_is_a_difference(tmp_path):
    def run(folder, factor):
        model = nn.Linear(2, 1)
        step = TrainStep(model, sgd(model), lambda model, x: model(x).mean() * factor, tier="eager")
        torch.manual_seed(0)
        with Monitor(1, folder, console=False, resources=False) as monitor:
            monitor.watch(step)
        return folder

    assert differing(run(tmp_path / "a", 1.0), run(tmp_path / "b", 2.0)) == ["step.factor"]


def test_a_value_of_argparse_is_compared(tmp_path):
    for name, dropout in (("a", 0.1), ("b", 0.2)):
        args = argparse.Namespace(dropout=dropout)
        with_step(tmp_path / name)
        assert args.dropout == dropout
    assert differing(tmp_path / "a", tmp_path / "b") == ["config.dropout"]


def test_a_monitor_records_a_step_under_the_paths_of_a_trainer(tmp_path):
    with_step(tmp_path / "own", clip_norm=1.0)
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    with Monitor(1, tmp_path / "trained", console=False, resources=False) as monitor:
        options = {"clip_norm": 1.0, "tier": "eager", "device": "cpu", "monitor": monitor}
        trainer = Trainer(model, loss_of, optimizer=sgd(model), **options)
        trainer.fit([torch.ones(4, 2)], epochs=1)
    own, of_trainer = settings(tmp_path / "own"), settings(tmp_path / "trained")
    assert {name: of_trainer[name] for name in own} == own


def test_a_trainer_with_a_monitor_of_the_user_records_each_setting_once(tmp_path):
    args = argparse.Namespace(lr=0.1)
    model = nn.Linear(2, 1)
    with Monitor(1, tmp_path, console=False, resources=False) as monitor:
        trainer = Trainer(model, loss_of, optimizer=sgd(model, lr=args.lr), monitor=monitor)
        trainer.fit([torch.ones(4, 2)], epochs=1)
        monitor.watch(trainer.train_step)
        monitor.watch(trainer.model)
        monitor.watch(trainer.optimizer)
        monitor.flush()
    described = [entry for entry in read(tmp_path) if entry.event.kind == "config"]
    assert len(described) == 1
    found = settings(tmp_path)
    assert [name for name in found if name.rpartition(".")[2] == "lr"] == [
        "config.lr",
        "optimizer_settings.lr",
    ]


def test_a_step_that_is_watched_again_adds_nothing(monitor, recorded):
    model = nn.Linear(2, 1)
    optimizer = sgd(model)
    step = TrainStep(model, optimizer, loss_of, tier="eager")
    for thing in (step, model, optimizer, step):
        monitor.watch(thing)
    assert len(recorded("config")) == 1


def test_a_second_optimizer_and_model_have_numbers(monitor):
    models = nn.Linear(2, 1), nn.Linear(2, 3)
    steps = [TrainStep(one, sgd(one, lr=lr), loss_of, tier="eager") for one, lr in zip(models, (0.1, 0.2))]
    for step in steps:
        monitor.watch(step)
    monitor.flush()
    found = settings(monitor.run_dir)
    assert (found["optimizer_settings.lr"], found["optimizer_settings (2).lr"]) == (0.1, 0.2)
    assert (found["model.parameters"], found["model (2).parameters"]) == (3, 9)
    assert "accumulate (2)" in found


def test_the_groups_of_an_optimizer_are_named_if_the_model_is_known(monitor):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    groups = [{"params": model[0].parameters(), "lr": 0.01}, {"params": model[1].parameters()}]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    monitor.watch(model)
    monitor.watch(optimizer)
    monitor.flush()
    found = settings(monitor.run_dir)
    assert found["optimizer"] == "AdamW"
    assert [found[f"optimizer_settings.group_{number}.lr"] for number in (1, 2)] == [0.01, 0.1]
    assert found["optimizer_settings.group_2.parameters"] == ["1"]


def test_a_schedule_of_flodl_in_a_plain_loop_is_recorded(monitor):
    model = nn.Linear(2, 1)
    optimizer = sgd(model)
    bridge = apply(StepDecay(0.1, step_size=3, gamma=0.5), optimizer)
    monitor.watch(bridge)
    monitor.flush()
    assert settings(monitor.run_dir)["schedule"].startswith("StepDecay(")
    bridge.step()


def test_an_object_without_settings_raises_an_error_that_names_what_can_be_watched(monitor):
    with pytest.raises(MonitorError, match="an optimizer, a torch LR scheduler"):
        monitor.watch(SimpleNamespace(step=print))


def test_a_later_start_with_another_rate_is_shown_as_a_change(tmp_path):
    for epoch, lr in enumerate((0.002, 0.001)):
        model = nn.Linear(2, 1)
        torch.manual_seed(0)
        with Monitor(2, tmp_path, console=False, resources=False) as monitor:
            monitor.watch(TrainStep(model, sgd(model, lr=lr), loss_of, tier="eager"))
            monitor.log(epoch, {"loss": 0.5}, duration=1.0)
    (run,) = json.loads(comparison_json([tmp_path]))["runs"]
    assert run["changed"] == {"optimizer_settings.lr": [{"epoch": 1, "was": 0.002, "now": 0.001}]}


@pytest.mark.parametrize("kind", ["of torch", "of flodl"])
def test_a_rate_that_a_schedule_has_lowered_is_no_change_of_a_run_that_continues(kind, tmp_path):
    torch.manual_seed(0)
    state = None
    for epoch in range(2):
        model = nn.Linear(2, 1)
        optimizer = sgd(model)
        if kind == "of torch":
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        else:
            schedule = apply(StepDecay(0.1, step_size=1, gamma=0.5), optimizer)
        if state is not None:
            optimizer.load_state_dict(state[0])
            schedule.load_state_dict(state[1])
        with Monitor(2, tmp_path, console=False, resources=False) as monitor:
            for thing in (model, schedule, optimizer):
                monitor.watch(thing)
            loss_of(model, torch.ones(4, 2)).backward()
            optimizer.step()
            schedule.step()
            monitor.log(epoch, {"loss": 0.5}, duration=1.0)
        state = optimizer.state_dict(), schedule.state_dict()
    (run,) = json.loads(comparison_json([tmp_path]))["runs"]
    assert run["changed"] == {}


def test_a_journal_of_an_earlier_version_is_compared_and_continued(tmp_path):
    old = tmp_path / "old"
    with Journal.open(old) as journal:
        journal.write(Event("run_start", {"name": "old", "config": []}))
        journal.write(Event("epoch", {"epoch": 0, "metrics": {"loss": 0.5}}))
        journal.write(Event("run_end", {"status": "finished"}))
    assert "optimizer_settings.lr" in differing(old, with_step(tmp_path / "new"))
    with_step(old)
    (run,) = json.loads(comparison_json([old]))["runs"]
    assert run["changed"] == {}


def test_an_option_of_the_program_keeps_its_value_next_to_a_setting_of_the_step(tmp_path, monkeypatch):
    published = {
        "accumulate": {"value": 4, "origin": "--accumulate"},
        "tail": {"value": "eager", "origin": "x"},
    }
    monkeypatch.setenv(RESOLVED_CONFIG, json.dumps(published))
    found = settings(with_step(tmp_path))
    assert (found["accumulate"], found["started_with.accumulate"]) == (1, 4)
    origins = {item["path"]: item["origin"] for item in snapshot(tmp_path)["config"]}
    assert (origins["tail"], origins["started_with.accumulate"]) == ("x", "--accumulate")


class Rude(nn.Linear):
    def extra_repr(self):
        raise ValueError("no")


def test_a_model_that_cannot_be_described_does_not_end_the_run(monitor):
    monitor.watch(Rude(2, 1))
    monitor.flush()
    assert settings(monitor.run_dir)["model"] == "unknown (ValueError)"
