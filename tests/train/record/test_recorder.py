"""Everything that can make two runs differ is recorded without being asked."""

import argparse
import json
import random
from array import array
from collections import OrderedDict
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, Loader, Monitor, Trainer, manual_seed
from flodl.checkpoint import best, last, list_bundles, read_bundle
from flodl.core import TrainError
from flodl.monitor import read
from flodl.monitor.snapshot import snapshot
from flodl.optim import CosineScheduler, PlateauScheduler
from flodl.train import EarlyStopping, ReduceOnPlateau


class Named:
    """A hook of the user, with a setting and a state."""

    def __init__(self, every=5):
        self.every, self.seen = every, []

    def on_step_end(self, loss):
        self.seen.append(loss)


class Error:
    """A metric with a setting."""

    def __init__(self, power=1):
        self.power = power
        self.reset()

    def reset(self):
        self.values = []

    def update(self, predictions, targets):
        self.values.append((predictions - targets).abs().pow(self.power).mean())

    def compute(self):
        return torch.stack(self.values).mean()


def loss_of(model, x, y):
    return nn.functional.mse_loss(model(x), y)


def other_loss(model, x, y):
    return nn.functional.mse_loss(model(x), y) * 2


def small(*, width=4, dropout=0.1, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, width), nn.Dropout(dropout), nn.Linear(width, 1))


def samples(*, count=12, seed=0):
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    return x, x.sum(1, keepdim=True)


def make_record(folder, **changes):
    """Train for an epoch, and return the record as a dashboard compares it: values by path."""
    fit = {"epochs": 1, "batch_size": 4, "data": samples(), "eval_data": samples()}
    fit |= {name: changes.pop(name) for name in list(changes) if name in (*fit, "limit")}
    model = small(**{name: changes.pop(name) for name in ("width", "dropout", "weights") if name in changes})
    rate, kind = changes.pop("lr", 0.1), changes.pop("kind", torch.optim.SGD)
    hyper = changes.pop("hyper", {})
    settings = {
        "optimizer": lambda groups: kind(groups, lr=rate, **hyper),
        "device": "cpu",
        "tier": "eager",
        "config": {},
        **changes,
    }
    trainer = Trainer(model, settings.pop("step_fn", loss_of), checkpoint_dir=folder, **settings)
    trainer.fit(fit.pop("data"), **fit)
    start = next(entry.event for entry in read(folder) if entry.event.kind == "run_start")
    return {entry["path"]: entry["value"] for entry in start.data["config"]}


def differing(one, other):
    return sorted(path for path in {*one, *other} if one.get(path) != other.get(path))


def plateau(*, patience):
    return PlateauScheduler(0.1, patience=patience, factor=0.1)


CHANGES = {
    "optimizer_settings.lr": {"lr": 0.1000001},
    "optimizer_settings.momentum": {"hyper": {"momentum": 0.9}},
    "optimizer": {"kind": torch.optim.AdamW},
    "schedule": {"schedule": CosineScheduler(0.1, 0.0, 10)},
    "clip_norm": {"clip_norm": 1.0},
    "clip_value": {"clip_value": 1.0},
    "accumulate": {"accumulate": 2},
    "precision": {"precision": "bf16"},
    "nan": {"nan": "skip"},
    "ema": {"ema": 0.9},
    "tail": {"tail": "drop"},
    "keep": {"keep": last(1) | best("eval_loss")},
    "hooks": {"hooks": [EarlyStopping(patience=7)]},
    "save_every": {"save_every": 2},
    "metrics.error.power": {"metrics": {"error": Error()}},
    "step_fn": {"step_fn": other_loss},
    "seed": {"seed": 3},
    "data.samples": {"data": samples(count=16)},
    "data.content": {"data": samples(seed=1)},
    "eval_data.content": {"eval_data": samples(seed=1)},
    "batch_size": {"batch_size": 6},
    "epochs": {"epochs": 2},
    "limit": {"limit": 2},
    "model.parameters": {"width": 5},
    "model.structure": {"dropout": 0.2},
    "config.width": {"config": {"width": 5}},
}


def smoothed(delta):
    criterion = nn.HuberLoss(delta=delta)
    return lambda model, x, y: criterion(model(x), y)


def test_runs_are_compared_by_readable_names_of_what_the_step_function_reads(tmp_path):
    one, other = (make_record(tmp_path / str(delta), step_fn=smoothed(delta)) for delta in (0.5, 1.0))
    assert differing(one, other) == ["step.criterion.delta"]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_record(tmp_path_factory.mktemp("base"))


def test_equal_runs_have_equal_records(base, tmp_path):
    assert differing(base, make_record(tmp_path)) == []
    assert json.loads(json.dumps(base)) == base


@pytest.mark.parametrize("path", CHANGES)
def test_a_run_that_was_set_differently_has_a_different_record(base, tmp_path, path):
    assert path in differing(base, make_record(tmp_path, **CHANGES[path]))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"schedule": lambda step: 0.1}, {"schedule": lambda step: 0.2}),
        ({"schedule": plateau(patience=2)}, {"schedule": plateau(patience=3)}),
        ({"hooks": [Named(5)]}, {"hooks": [Named(6)]}),
        ({"hooks": [EarlyStopping(tol=0.1)]}, {"hooks": [EarlyStopping(tol=0.2)]}),
        ({"hooks": [ReduceOnPlateau(factor=0.1)]}, {"hooks": [ReduceOnPlateau(factor=0.2)]}),
        ({"metrics": {"error": Error(1)}}, {"metrics": {"error": Error(2)}}),
        ({"hooks": [EarlyStopping(), Named()]}, {"hooks": [Named(), EarlyStopping()]}),
    ],
)
def test_settings_of_the_same_kind_have_different_records(tmp_path, one, other):
    records = [make_record(tmp_path / str(index), **changes) for index, changes in enumerate((one, other))]
    assert differing(*records)


class Stepped(torch.optim.SGD):
    """An optimizer with a setting that is not one of its groups."""

    def __init__(self, groups, lr, k=6):
        super().__init__(groups, lr=lr)
        self.k, self.calls = k, 0

    def step(self, closure=None):
        self.calls += 1
        return super().step(closure)


class Chosen(torch.utils.data.Dataset):
    def __init__(self, idx):
        self.idx, self.x = idx, samples(count=64)[0]

    def __len__(self):
        return len(self.idx)

    def __getitem__(self, at):
        return self.x[self.idx[at]], self.x[self.idx[at]].sum().reshape(1)


def chosen(idx):
    return torch.utils.data.DataLoader(
        Chosen(range(64)), batch_size=4, sampler=torch.utils.data.SubsetRandomSampler(idx)
    )


def reading(idx):
    return lambda model, x, y: loss_of(model, x, y) * len(idx)


def train_once(folder, model=None, optimizer=None, step_fn=loss_of, data=None, hooks=()):
    """Train a model for an epoch, and return config.json's record."""
    model = small() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer(model)
    settings = {"device": "cpu", "tier": "eager", "monitor": False, "checkpoint_dir": folder, "config": {}}
    trainer = Trainer(model, step_fn, optimizer=optimizer, hooks=list(hooks), **settings)
    data = samples() if data is None else data
    is_loader = isinstance(data, torch.utils.data.DataLoader)
    trainer.fit(data, epochs=1, batch_size=None if is_loader else 4)
    return json.loads((folder / "config.json").read_text())["trainer"]


def in_evaluation(*names):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    for name in names:
        model.get_submodule(name).eval()
    return model


def frozen_graph(eval_mode):
    torch.manual_seed(0)
    model = FlowBuilder(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))).tag("enc").through(nn.Linear(4, 1))
    model = model.build()
    model.freeze("enc", eval_mode=eval_mode)
    return model


def stepping(gamma):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=gamma)

    def on_epoch_end():
        scheduler.step()

    return {"model": model, "optimizer": lambda model: optimizer, "hooks": [on_epoch_end]}


def warming_up(lr):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 4))

    def on_step_end():
        scheduler.step()

    return {"model": model, "optimizer": lambda model: optimizer, "hooks": [on_step_end]}


def grouped(first, second):
    def optimizer(model):
        groups = [
            {"params": [model.get_parameter(name) for name in names], "lr": lr}
            for names, lr in ((first, 0.1), (second, 0.2))
        ]
        return torch.optim.SGD(groups)

    return {"model": nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)), "optimizer": optimizer}


PAIRS = {
    "the scheduler in a hook": (stepping(0.5), stepping(0.9), "hooks"),
    "the rate of a warm-up from 0": (warming_up(0.1), warming_up(0.01), "optimizer_settings"),
    "a module in evaluation mode": ({"model": in_evaluation()}, {"model": in_evaluation("1")}, "model"),
    "another module in evaluation mode": (
        {"model": in_evaluation("0")},
        {"model": in_evaluation("1")},
        "model",
    ),
    "frozen parts in evaluation mode": (
        {"model": frozen_graph(True)},
        {"model": frozen_graph(False)},
        "model",
    ),
    "a range in a sampler": ({"data": chosen(range(32))}, {"data": chosen(range(32, 64))}, "data"),
    "a range in a dataset": ({"data": Chosen(range(32))}, {"data": Chosen(range(32, 64))}, "data"),
    "a range in a step function": ({"step_fn": reading(range(3))}, {"step_fn": reading(range(1, 4))}, "step"),
    "an array in a step function": (
        {"step_fn": reading(array("d", [1.0]))},
        {"step_fn": reading(array("d", [2.0]))},
        "step",
    ),
    "the members of groups": (
        grouped(["0.weight", "0.bias"], ["1.weight", "1.bias"]),
        grouped(["1.weight", "1.bias"], ["0.weight", "0.bias"]),
        "optimizer_settings",
    ),
    "an attribute of an optimizer": (
        {"optimizer": lambda model: Stepped(model.parameters(), 0.1, k=6)},
        {"optimizer": lambda model: Stepped(model.parameters(), 0.1, k=5)},
        "optimizer_attributes",
    ),
}


@pytest.mark.parametrize("what", PAIRS)
def test_runs_that_differ_in_one_thing_have_different_records(tmp_path, what):
    one, other, name = PAIRS[what]
    records = []
    for number, settings in enumerate((one, other)):
        torch.manual_seed(0)
        records.append(train_once(tmp_path / str(number), **settings))
    assert records[0][name] != records[1][name]
    for record in records:
        record["model"].pop("weights_at_start")
        record["model"].pop("buffers")
        record.pop(name)
    if name != "model":
        assert records[0] == records[1], "nothing else differs"


def test_parts_that_are_frozen_or_in_evaluation_mode_are_recorded_by_their_paths(tmp_path):
    model = in_evaluation("1")
    model[0].requires_grad_(False)
    record = train_once(tmp_path / "a", model=model)["model"]
    assert (record["frozen"], record["evaluating"]) == (["0"], ["1"])
    whole = in_evaluation().eval()
    assert train_once(tmp_path / "b", model=whole)["model"]["evaluating"] == [], "it is switched as a whole"
    assert train_once(tmp_path / "c", model=frozen_graph(True).eval())["model"]["evaluating"] == ["enc"]


def test_the_parameters_of_a_group_are_named_unless_it_has_all_that_are_trained(tmp_path):
    assert "parameters" not in train_once(tmp_path / "a")["optimizer_settings"]
    settings = grouped(["0.weight", "0.bias"], ["1.weight", "1.bias", "2.bias"])
    record = train_once(tmp_path / "b", **settings)["optimizer_settings"]
    assert [group["parameters"] for group in record.values()] == [["0"], ["1", "2.bias"]]


def test_what_an_optimizer_counts_is_not_recorded(tmp_path):
    record = train_once(tmp_path, optimizer=lambda model: Stepped(model.parameters(), 0.1))
    assert record["optimizer_attributes"] == {"k": 6}


def test_two_runs_with_different_learning_rates_never_compare_as_equal(tmp_path):
    rng = random.Random(0)
    rates = [10 ** rng.uniform(-6, 0) for _ in range(4)]
    records = [make_record(tmp_path / str(index), lr=rate) for index, rate in enumerate(rates)]
    for index, one in enumerate(records):
        for other in records[index + 1 :]:
            assert differing(one, other) == ["optimizer_settings.lr"]


def test_groups_with_settings_of_their_own_are_recorded_one_by_one(tmp_path):
    model = small()
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 0.2}]
    settings = {"device": "cpu", "monitor": False, "checkpoint_dir": tmp_path}
    Trainer(model, loss_of, optimizer=torch.optim.SGD(groups), **settings).fit(
        samples(), epochs=1, batch_size=4
    )
    recorded = json.loads((tmp_path / "config.json").read_text())["trainer"]["optimizer_settings"]
    assert {name: (group["lr"], group["num_parameters"]) for name, group in recorded.items()} == {
        "group_1": (0.1, 16),
        "group_2": (0.2, 5),
    }


def test_the_weights_at_the_start_and_the_seed_of_the_order_are_recorded(tmp_path):
    def record(folder, seed):
        manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 1))
        settings = {"optimizer": lambda groups: torch.optim.SGD(groups, lr=0.1), "device": "cpu"}
        trainer = Trainer(model, loss_of, monitor=False, checkpoint_dir=folder, **settings)
        trainer.fit(samples(), epochs=1, batch_size=4)
        return json.loads((folder / "config.json").read_text())["trainer"]

    one, same, other = (record(tmp_path / str(index), seed) for index, seed in enumerate((5, 5, 6)))
    assert one == same
    assert (one["data"]["seed"], other["data"]["seed"]) == (5, 6)
    assert one["seed"] == 5
    assert one["model"]["weights_at_start"] != other["model"]["weights_at_start"]


def test_a_monitor_of_the_user_gets_the_same_record(tmp_path, base):
    with Monitor(1, tmp_path / "mine", console=False, resources=False, config={"note": "kept"}) as monitor:
        make_record(tmp_path / "run", monitor=None)
        settings = {"optimizer": lambda groups: torch.optim.SGD(groups, lr=0.1), "device": "cpu"}
        trainer = Trainer(small(), loss_of, monitor=monitor, tier="eager", config={}, **settings)
        trainer.fit(samples(), epochs=1, batch_size=4, eval_data=samples())
    shown = {entry["path"]: entry["value"] for entry in snapshot(tmp_path / "mine")["config"]}
    assert shown["note"] == "kept"
    missing = {path for path in base if path not in shown}
    assert missing <= {"keep"}
    assert shown["optimizer_settings.lr"] == 0.1


def test_a_resumed_run_keeps_the_settings_of_its_first_start(tmp_path):
    schedule = {"schedule": lambda step: 0.1 * 0.5**step}
    make_record(tmp_path, **schedule)
    first = json.loads((tmp_path / "config.json").read_text())["trainer"]
    make_record(tmp_path, epochs=2, lr=0.7, **schedule)
    again = json.loads((tmp_path / "config.json").read_text())["trainer"]
    assert again["epochs"] == 2
    for name in ("optimizer_settings", "model", "started_from"):
        assert again[name] == first[name]


class StopOnce:
    """Stops a run at an update, or in the evaluation that follows it, the first time only."""

    done = False

    def __init__(self, *, in_evaluation):
        self.in_evaluation = in_evaluation

    def on_step_end(self, trainer, step):
        if step == 3 and not self.in_evaluation and not StopOnce.done:
            StopOnce.done = True
            trainer.stop()

    def on_evaluate_end(self):
        if self.in_evaluation and not StopOnce.done:
            StopOnce.done = True
            raise RuntimeError("killed")


@pytest.mark.parametrize("in_evaluation", [False, True])
@pytest.mark.parametrize("dry_pass", [False, True])
def test_a_run_that_was_stopped_at_the_end_of_an_epoch_still_records_its_evaluation_data(
    tmp_path, capsys, in_evaluation, dry_pass
):
    settings = {"epochs": 2, "hooks": [StopOnce(in_evaluation=in_evaluation)], "dry_pass": dry_pass}
    settings["save_every_steps"] = 3
    StopOnce.done = True
    whole = make_record(tmp_path / "whole", **settings)
    StopOnce.done = False
    with pytest.raises(RuntimeError, match="killed") if in_evaluation else nullcontext():
        make_record(tmp_path / "run", **settings)
    make_record(tmp_path / "run", **settings)
    starts = [one.event.data for one in read(tmp_path / "run") if one.event.kind == "run_start"]
    resumed = {entry["path"]: entry["value"] for entry in starts[-1]["config"]}
    assert [path for path in differing(whole, resumed) if path.startswith("eval_data")] == []
    capsys.readouterr()
    make_record(tmp_path / "run", **settings)
    assert "is now" not in "".join(capsys.readouterr())


def test_a_run_that_is_stopped_before_its_first_batch_records_its_evaluation_data(tmp_path):
    class Stop:
        def on_start(self, trainer):
            if trainer.epochs:
                trainer.save()
                trainer.stop()

    make_record(tmp_path, hooks=[Stop()])
    make_record(tmp_path, hooks=[Stop()], epochs=2)
    record = json.loads((tmp_path / "config.json").read_text())
    assert "eval_data" not in str(record["starts"][-1].get("changed"))
    assert record["trainer"]["eval_data"] is not None


def test_a_run_that_starts_from_another_names_it(tmp_path):
    make_record(tmp_path / "first")
    bundle = list_bundles(tmp_path / "first" / "bundles")[-1].path
    settings = {"optimizer": lambda groups: torch.optim.SGD(groups, lr=0.9), "device": "cpu"}
    for epochs in (2, 3):
        trainer = Trainer(small(), loss_of, checkpoint_dir=tmp_path / "second", monitor=False, **settings)
        trainer.fit(samples(), epochs=epochs, batch_size=4, resume=bundle)
        record = json.loads((tmp_path / "second" / "config.json").read_text())["trainer"]
        assert record["started_from"] == str(bundle)
        assert record["optimizer_settings"]["lr"] == 0.1, "the rate of the run that was loaded"


def test_a_bundle_contains_the_record(tmp_path, base):
    make_record(tmp_path)
    saved = read_bundle(list_bundles(tmp_path / "bundles")[-1])["config"]
    assert saved["optimizer_settings"]["lr"] == base["optimizer_settings.lr"]
    assert saved["data"]["samples"] == 12


def test_data_are_described_by_what_they_are(tmp_path):
    class Folder(torch.utils.data.Dataset):
        def __init__(self, root, split):
            self.root, self.split, self._data = root, split, samples()

        def __len__(self):
            return 12

        def __getitem__(self, index):
            return self._data[0][index], self._data[1][index]

    record = make_record(tmp_path, data=Folder(Path("images"), "train"), batch_size=4)
    assert record["data.source"] == "Folder(split='train')" or "images" in record["data.source"]
    assert record["data.samples"] == 12
    loader = Loader(samples(), 4, seed=9, sampler=[0, 1, 2, 3], augment=lambda x, y: (x, y))
    described = loader.description
    assert (described["seed"], described["samples"], described["sampler"]) == (9, 12, "[0, 1, 2, 3]")
    assert described["augment"].startswith("lambda x, y: (x, y)") or "lambda" in described["augment"]


@dataclass
class Job:
    width: int = 4
    rates: list[float] = field(default_factory=lambda: [0.1, 0.2])
    root: Path = Path("runs")


def trainer_of(config=None):
    settings = {"optimizer": lambda groups: torch.optim.SGD(groups, lr=0.1), "device": "cpu"}
    return Trainer(small(), loss_of, monitor=False, config=config, **settings)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"width": 4}, {"width": 4}),
        (argparse.Namespace(width=4, path=Path("a")), {"width": 4, "path": "a"}),
        (Job(), {"width": 4, "rates": [0.1, 0.2], "root": "runs"}),
        (OrderedDict(deep={"width": 5}), {"deep": {"width": 5}}),
    ],
)
def test_config_takes_what_a_program_has(config, expected):
    assert trainer_of(config)._run.recorder.config == expected


@pytest.mark.parametrize("config", [3, "a", ["b"], Job])
def test_config_that_has_no_names_is_refused(config):
    with pytest.raises(TrainError, match="Pass a dictionary, a dataclass or the result of"):
        trainer_of(config)


def test_arguments_of_the_program_are_found_without_being_passed():
    def main():
        args = argparse.ArgumentParser()
        args.add_argument("--width", type=int, default=4)
        args = args.parse_args(["--width", "7"])
        return inner(), args

    def inner():
        return trainer_of()._run.recorder.config

    found, args = main()
    assert found == {"width": 7} == vars(args)


def test_a_dataclass_is_found_by_the_name_of_its_variable():
    def main(config):
        unrelated = Job(width=99)
        return trainer_of()._run.recorder.config, unrelated

    assert main(Job(width=3))[0] == {"width": 3, "rates": [0.1, 0.2], "root": "runs"}


def test_several_settings_are_recorded_by_the_names_of_their_variables():
    def main(config, args):
        return trainer_of()._run.recorder.config

    found = main(Job(width=3), argparse.Namespace(lr=0.1))
    assert found == {"config": {"width": 3, "rates": [0.1, 0.2], "root": "runs"}, "args": {"lr": 0.1}}


def test_settings_that_args_has_published_are_not_recorded_twice(monkeypatch):
    monkeypatch.setenv("FLODL_RESOLVED_CONFIG", json.dumps({"width": {"value": 3, "origin": "--width"}}))

    def main(config):
        return trainer_of()._run.recorder.config

    assert main(Job(width=3)) == {"rates": [0.1, 0.2], "root": "runs"}
