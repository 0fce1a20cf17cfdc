"""Whatever changed since a run was saved is named when it is resumed, and again when it is finished."""

import datetime
import functools
import json
import shutil
import time
import types

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

from flodl import Loader
from flodl.checkpoint import best, last, latest_bundle, read_bundle, save_bundle
from flodl.monitor import read
from flodl.monitor.snapshot import summary
from flodl.optim import CosineScheduler
from flodl.train import EarlyStopping
from flodl.train.saving.changes.changed_record import changed_record

from ...scheduler_hooks import Saved, Stepping

config = types.SimpleNamespace(alpha=1.0, unused=0)
SCALE = 1.0


class Descent(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


class OtherDescent(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        return super().step(closure)


class Fall:
    def lr(self, step):
        return 0.01 / (1 + step)


class OtherFall:
    def lr(self, step):
        return 0.01 / (2 + step)


OtherDescent.__qualname__ = OtherDescent.__name__ = "Descent"
OtherFall.__qualname__ = OtherFall.__name__ = "Fall"


class Criterion:
    """A plain object with a setting, which counts its calls."""

    def __init__(self, weight):
        self.weight, self.calls = weight, 0

    def __call__(self, output, target):
        self.calls += 1
        return (output - target).abs().mean() * self.weight

    @property
    def costly(self):
        raise AssertionError("the record reads no property")

    def __repr__(self):
        raise AssertionError("the record calls no __repr__")


class Net(nn.Module):
    def __init__(self, scale=1.0, activation=nn.ReLU, momentum=0.1, p=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.scale = scale
        self.body = nn.Sequential(
            nn.Linear(3, 8), nn.BatchNorm1d(8, momentum=momentum), activation(), nn.Dropout(p)
        )
        self.head = nn.Linear(8, 1)
        self.num_calls = 0

    def forward(self, x):
        self.num_calls += 1
        return self.head(self.body(x)) * self.scale


class OtherNet(Net):
    def forward(self, x):
        return super().forward(x) + 1


OtherNet.__qualname__ = "Net"


class Learner:
    def __init__(self, rate):
        self.rate, self.losses = rate, []

    def step(self, model, x, y):
        loss = nn.functional.mse_loss(model(x), y) * self.rate
        self.losses.append(loss.detach())
        return loss


class Every:
    def __init__(self, steps):
        self.steps, self.seen = steps, []

    def on_step_end(self):
        self.seen.append(1)


class Rows(Dataset):
    def __init__(self, seed, noise=0.0):
        self.x, self.noise = samples(seed)[0], noise

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + self.noise, self.x[index].sum().reshape(1)


def hooked(hook, where="forward"):
    model = Net()
    if where == "forward":
        model.head.register_forward_hook(hook)
    elif where == "tensor":
        model.head.weight.register_hook(hook)
    else:
        model.head.register_full_backward_hook(hook)
    return model


def hooked_optimizer(hook):
    def build(groups):
        optimizer = torch.optim.SGD(groups, lr=0.01)
        optimizer.register_step_post_hook(hook)
        return optimizer

    return build


class Decay(Stepping):
    """A hook that steps a scheduler of torch."""


class SavedDecay(Saved):
    """The same, with a state."""


class LateDecay(SavedDecay):
    """Creates its scheduler when the trainer has made the optimizer."""

    def __init__(self, gamma, as_list=False):
        self.gamma, self.as_list = gamma, as_list

    def on_start(self, trainer):
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(trainer.optimizer, gamma=self.gamma)
        if self.as_list:
            self.all = [self.scheduler]


class OftenDecay(LateDecay):
    """Changes a setting of its scheduler while it trains."""

    def on_epoch_end(self):
        self.scheduler.gamma *= 0.9


class CheckedDecay(SavedDecay):
    """Creates its scheduler in `on_start`, unless it was given one."""

    def on_start(self, trainer):
        if self.scheduler is None:
            self.scheduler = torch.optim.lr_scheduler.ExponentialLR(trainer.optimizer, gamma=0.5)


def decaying(kind=SavedDecay, gamma=0.5, nested=False):
    """Return the settings of a trainer whose hook steps a scheduler."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=gamma)
    if nested:
        first = torch.optim.lr_scheduler.ConstantLR(optimizer)
        scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [first, scheduler], [2])
    return {"model": model, "optimizer": optimizer, "hooks": [kind(scheduler)]}


class Smoothed(torch.optim.SGD):
    """An optimizer with a setting that no group has."""

    def __init__(self, groups, k):
        super().__init__(groups, lr=0.01)
        self.k = k


def times(factor):
    return lambda module, inputs, output: output * factor


def count_steps(optimizer, args, kwargs):
    return None


def samples(seed=0):
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(seed))
    return x, x.sum(1, keepdim=True)


def squared(model, x, y):
    return nn.functional.mse_loss(model(x), y)


def doubled(model, x, y):
    return nn.functional.mse_loss(model(x), y) * 2


doubled.__qualname__ = "squared"


def closing_over(**values):
    criterion, weights = values.get("criterion"), values.get("weights")

    def step(model, x, y):
        loss = squared(model, x, y) if criterion is None else criterion(model(x), y.sigmoid())
        return loss if weights is None else loss * weights["main"]

    return step


def reading_globals(model, x, y):
    return squared(model, x, y) * config.alpha * SCALE


def scaled(model, x, y, scale=1.0):
    return squared(model, x, y) * scale


def some_rows(model, x, y, rows):
    return squared(model, x[list(rows)], y[list(rows)])


def collating(offset):
    def collate(rows):
        return torch.stack([x for x, _ in rows]) + offset, torch.stack([y for _, y in rows])

    return collate


def shifted(by):
    return lambda batch: (batch[0] + by, batch[1])


def rows(**options):
    return DataLoader(Rows(0), batch_size=5, **options)


def fit(folder, epochs, *, model=None, step=squared, data=None, eval_data=(), make, **settings):
    trainer = make(Net() if model is None else model, step, checkpoint_dir=folder, monitor=None, **settings)
    is_loader = isinstance(data, Loader | DataLoader)
    result = trainer.fit(
        samples() if data is None else data,
        epochs=epochs,
        batch_size=None if is_loader else 5,
        eval_data=samples(9) if eval_data == () else eval_data,
    )
    assert len(result.history) == epochs
    return [entry.event.data["message"] for entry in read(folder) if entry.event.kind == "alert"]


CHANGES = {
    "the code of the step function": (
        "step_fn is now 'squared #",
        {"step": squared},
        {"step": doubled},
    ),
    "a module in the closure": (
        "step.criterion.delta is now 2.0, was 1.0",
        {"step": closing_over(criterion=nn.HuberLoss(delta=1.0))},
        {"step": closing_over(criterion=nn.HuberLoss(delta=2.0))},
    ),
    "a buffer of a module in the closure": (
        "step.criterion.pos_weight is now [3.0], was [2.0]",
        {"step": closing_over(criterion=nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0])))},
        {"step": closing_over(criterion=nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0])))},
    ),
    "a plain object in the closure": (
        "step.criterion.weight is now 2.0, was 1.0",
        {"step": closing_over(criterion=Criterion(1.0))},
        {"step": closing_over(criterion=Criterion(2.0))},
    ),
    "a dict in the closure": (
        "step.weights.main is now 0.5, was 1.0",
        {"step": closing_over(weights={"main": 1.0})},
        {"step": closing_over(weights={"main": 0.5})},
    ),
    "a default": (
        "step.scale is now 0.5, was 1.0",
        {"step": functools.partial(scaled)},
        {"step": functools.partial(scaled, scale=0.5)},
    ),
    "an attribute of self": (
        "step.self.rate is now 0.5, was 1.0",
        {"step": Learner(1.0).step},
        {"step": Learner(0.5).step},
    ),
    "an argument of a hook": (
        "hooks.EarlyStopping is now \"EarlyStopping('eval_loss', patience=9",
        {"hooks": [EarlyStopping(patience=8)]},
        {"hooks": [EarlyStopping(patience=9)]},
    ),
    "an argument of a hook of the user": (
        "hooks.Every.steps is now 6, was 5",
        {"hooks": [Every(5)]},
        {"hooks": [Every(6)]},
    ),
    "a new hook": ("the hook Every is new", {}, {"hooks": [Every(6)]}),
    "a missing hook": ("the hook Every of the saved run is missing", {"hooks": [Every(6)]}, {}),
    "an activation": (
        "model.body.2 is now 'Tanh', was 'ReLU(inplace=False)'",
        {},
        {"model": Net(activation=nn.Tanh)},
    ),
    "a dropout rate": (
        "model.body.3 is now 'Dropout(p=0.5, inplace=False)', was 'Dropout(p=0.0, inplace=False)'",
        {},
        {"model": Net(p=0.5)},
    ),
    "the momentum of a batch norm": ("momentum=0.2", {}, {"model": Net(momentum=0.2)}),
    "an attribute of a module": (
        "model.(root) is now 'Net(scale=0.5)', was 'Net(scale=1.0)'",
        {},
        {"model": Net(scale=0.5)},
    ),
    "the forward of a module": ("model.classes.Net", {}, {"model": OtherNet()}),
    "the training data": ("data.content is now", {}, {"data": samples(1)}),
    "the evaluation data": ("eval_data.content is now", {}, {"eval_data": samples(1)}),
    "a dataset": ("data.dataset.x is now", {"data": Rows(0)}, {"data": Rows(1)}),
    "a setting of a dataset": ("data.dataset.noise is now 0.5", {"data": Rows(0)}, {"data": Rows(0, 0.5)}),
    "an augmentation": (
        "data.augment",
        {"data": Loader(samples(), 5, augment=shifted(1.0))},
        {"data": Loader(samples(), 5, augment=shifted(2.0))},
    ),
    "one of several augmentations": (
        "data.augment",
        {"data": Loader(samples(), 5, augment=[shifted(1.0)])},
        {"data": Loader(samples(), 5, augment=[shifted(2.0)])},
    ),
    "the closure of collate_fn": (
        "data.collate_fn.offset is now 2.0, was 1.0",
        {"data": rows(collate_fn=collating(1.0))},
        {"data": rows(collate_fn=collating(2.0))},
    ),
    "a sampler of a torch loader": (
        "data.sampler.weights is now",
        {"data": rows(sampler=WeightedRandomSampler([1.0] * 20, 20))},
        {"data": rows(sampler=WeightedRandomSampler([1.0] * 19 + [2.0], 20))},
    ),
    "drop_last of a torch loader for evaluation": (
        "eval_data.drop_last is now True, was False",
        {"eval_data": DataLoader(Rows(0), 6)},
        {"eval_data": DataLoader(Rows(0), 6, drop_last=True)},
    ),
    "the batch size of a torch loader for evaluation": (
        "eval_data.batch_size is now 4, was 6",
        {"eval_data": DataLoader(Rows(0), 6)},
        {"eval_data": DataLoader(Rows(0), 4)},
    ),
    "a torch loader for evaluation that shuffles": (
        "eval_data.shuffle is now True, was False",
        {"eval_data": DataLoader(Rows(0), 6)},
        {"eval_data": DataLoader(Rows(0), 6, shuffle=True)},
    ),
    "drop_last of the training data": (
        "data.drop_last is now True, was False",
        {},
        {"data": Loader(samples(), 5, drop_last=True)},
    ),
    "evaluation data that is left out": (
        "eval_data is now None, was 'tensors: float32 20x3, float32 20x1'",
        {"eval_data": samples(9)},
        {"eval_data": None},
    ),
    "evaluation data that is new": (
        "eval_data is now 'tensors: float32 20x3, float32 20x1', was None",
        {"eval_data": None},
        {"eval_data": samples(9)},
    ),
    "drop_last of the evaluation data": (
        "eval_data.drop_last is now False, was True",
        {"eval_data": Loader(samples(9), 6, drop_last=True)},
        {"eval_data": samples(9)},
    ),
    "the code of an optimizer": (
        "optimizer is now 'Descent #",
        {"optimizer": lambda groups: Descent(groups, lr=0.01)},
        {"optimizer": lambda groups: OtherDescent(groups, lr=0.01)},
    ),
    "the code of a schedule": ("schedule is now 'Fall #", {"schedule": Fall()}, {"schedule": OtherFall()}),
    "a new forward hook": (
        "torch_hooks.model.head.forward_hooks is now [",
        {},
        {"model": hooked(times(1.0))},
    ),
    "a forward hook": (
        "torch_hooks.model.head.forward_hooks is now [{'code': 'lambda module, inputs, output:",
        {"model": hooked(times(1.0))},
        {"model": hooked(times(0.5))},
    ),
    "a backward hook": (
        "torch_hooks.model.head.backward_hooks is now [",
        {},
        {"model": hooked(lambda module, inputs, outputs: None, "backward")},
    ),
    "a hook of a parameter": (
        "torch_hooks.model.head.weight.hooks is now ['lambda grad: grad * 2'], was not there",
        {},
        {"model": hooked(lambda grad: grad * 2, "tensor")},
    ),
    "a hook of the optimizer": (
        "torch_hooks.optimizer.step_post_hooks is now ['count_steps #",
        {},
        {"optimizer": hooked_optimizer(count_steps)},
    ),
    "an attribute of the optimizer": (
        "optimizer_attributes.k is now 5, was 6",
        {"optimizer": lambda groups: Smoothed(groups, 6)},
        {"optimizer": lambda groups: Smoothed(groups, 5)},
    ),
    "a range that the step function reads": (
        "step.rows is now 'range(2, 4)', was 'range(0, 2)'",
        {"step": functools.partial(some_rows, rows=range(2))},
        {"step": functools.partial(some_rows, rows=range(2, 4))},
    ),
    "keep": ("keep is now 'last(3)', was 'last(2)'", {}, {"keep": last(3)}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_named_on_resume(make, tmp_path, what):
    said, before, after = CHANGES[what]
    fit(tmp_path, 1, make=make, **before)
    fit(tmp_path, 2, make=make, **before)
    same, changed = fit(tmp_path, 3, make=make, **after)
    assert same == "resumed after 4 updates, 1 epoch done", "the same program has no differences"
    assert said in changed


class Timed:
    """A hook with the time at which it was created, or another number."""

    def __init__(self, *starts):
        self.start, self.created = list(starts), datetime.datetime.now(datetime.UTC)

    def on_epoch_end(self):
        print(f"{time.time() - self.start[0]:.1f} s")


def timed(*starts):
    """Return everything that may have such a number, as arguments of `fit`."""
    dataset, model, hook = Rows(0), Net(), Timed(*starts)
    for each in (dataset, model):
        each.start, each.created = starts[0], hook.created
    optimizer = Smoothed(model.parameters(), 6)
    optimizer.start = starts[0]
    return {
        "data": Loader(dataset, 5),
        "eval_data": DataLoader(dataset, 6),
        "model": model,
        "optimizer": optimizer,
        "hooks": [hook],
        "step": functools.partial(scaled, scale=1.0 if hook.start else starts[0]),
    }


def test_the_time_at_which_an_object_was_created_is_not_a_difference(make, tmp_path):
    for epochs in (1, 2):
        told = fit(tmp_path, epochs, make=make, **timed(time.time(), time.perf_counter()))
    assert told[-1] == "resumed after 4 updates, 1 epoch done"
    record = (tmp_path / "config.json").read_text()
    assert "a time of this process" in record


def test_a_constant_that_looks_like_a_time_is_compared(make, tmp_path):
    for epochs, start in ((1, 1.7e9), (2, 1.8e9)):
        told = fit(tmp_path, epochs, make=make, **timed(start))
    for path in ("hooks.Timed.start", "data.dataset.start", "eval_data.dataset.start", "model.(root)"):
        assert f"{path} is now" in told[-1]


@pytest.mark.parametrize("is_shuffled", [False, True])
def test_a_torch_loader_that_an_earlier_version_recorded_is_the_same_data(make, tmp_path, is_shuffled):
    def start(epochs):
        data, eval_data = rows(shuffle=is_shuffled), DataLoader(Rows(0), 6)
        return fit(tmp_path, epochs, make=make, data=data, eval_data=eval_data)

    def earlier(data, kind):
        inner = {"class": kind, "data_source": "the dataset"}
        inner |= {"replacement": False} if kind == "RandomSampler" else {}
        size = data.pop("batch_size")
        data.pop("shuffle")
        data["sampler"] = {
            "class": "BatchSampler",
            "sampler": inner,
            "batch_size": size,
            "drop_last": data["drop_last"],
        }
        data |= {"samples": 4, "batch_size": None, "drop_last": False}

    start(1)
    bundle = latest_bundle(tmp_path / "bundles").bundle
    parts = dict(read_bundle(bundle))
    earlier(parts["config"]["data"], "RandomSampler" if is_shuffled else "SequentialSampler")
    earlier(parts["config"]["eval_data"], "SequentialSampler")
    shutil.rmtree(bundle.path)
    save_bundle(tmp_path / "bundles", bundle.step, parts)
    assert start(2)[-1].endswith("1 epoch done")


@pytest.mark.parametrize("nested", [False, True])
def test_a_scheduler_in_a_hook_that_loads_its_state_keeps_the_saved_settings_which_every_start_says(
    make, tmp_path, nested
):
    fit(tmp_path, 1, make=make, **decaying(nested=nested))
    assert (
        fit(tmp_path, 2, make=make, **decaying(nested=nested))[-1] == "resumed after 4 updates, 1 epoch done"
    )
    path = "hooks.SavedDecay.scheduler.schedulers.1.gamma" if nested else "hooks.SavedDecay.scheduler.gamma"
    for epochs in (3, 4):
        told = fit(tmp_path, epochs, make=make, **decaying(gamma=0.9, nested=nested))[-1]
        assert told.endswith(f"; {path} continues with its saved value of 0.5, not 0.9")
    recorded = json.loads((tmp_path / "config.json").read_text())["trainer"]["hooks"][0]["scheduler"]
    assert (recorded["schedulers"]["1"] if nested else recorded)["gamma"] == 0.5


def test_a_scheduler_that_on_start_creates_keeps_the_saved_settings_which_every_start_says(make, tmp_path):
    fit(tmp_path, 1, make=make, hooks=[LateDecay(0.5)])
    assert fit(tmp_path, 2, make=make, hooks=[LateDecay(0.5)])[-1] == "resumed after 4 updates, 1 epoch done"
    ignored = "hooks.LateDecay.scheduler.gamma continues with its saved value of 0.5, not 0.9"
    first = fit(tmp_path, 3, make=make, hooks=[LateDecay(0.9)])[-1]
    assert first.endswith(f"; hooks.LateDecay.gamma is now 0.9, was 0.5; {ignored}")
    again = fit(tmp_path, 4, make=make, hooks=[LateDecay(0.9)])[-1]
    assert again == f"resumed after 12 updates, 3 epochs done; {ignored}"
    record = json.loads((tmp_path / "config.json").read_text())["trainer"]
    assert record["ignored_settings"] == {"gamma": [0.9]}
    assert (record["hooks"][0]["gamma"], record["hooks"][0]["scheduler"]["gamma"]) == (0.9, 0.5)
    assert {"epoch": 2, "value": 0.9} in summary(tmp_path)["ignored"]["hooks.gamma"]
    last = fit(tmp_path, 5, make=make, hooks=[LateDecay(0.5)])[-1]
    assert last.endswith("; hooks.LateDecay.gamma is now 0.5, was 0.9"), "the scheduler has the saved value"
    assert "ignored_settings" not in json.loads((tmp_path / "config.json").read_text())["trainer"]


def test_a_list_of_schedulers_that_on_start_creates_is_compared(make, tmp_path):
    fit(tmp_path, 1, make=make, hooks=[LateDecay(0.5, as_list=True)])
    told = fit(tmp_path, 2, make=make, hooks=[LateDecay(0.9, as_list=True)])[-1]
    assert "hooks.LateDecay.scheduler.gamma continues with its saved value of 0.5, not 0.9" in told
    record = json.loads((tmp_path / "config.json").read_text())["trainer"]["hooks"][0]
    assert record["all"][0]["gamma"] == 0.5


def test_a_scheduler_of_the_constructor_is_compared_although_on_start_may_create_it(make, tmp_path):
    fit(tmp_path, 1, make=make, **decaying(CheckedDecay))
    assert (
        fit(tmp_path, 2, make=make, **decaying(CheckedDecay))[-1] == "resumed after 4 updates, 1 epoch done"
    )
    for epochs in (3, 4):
        told = fit(tmp_path, epochs, make=make, **decaying(CheckedDecay, gamma=0.9))[-1]
        assert told.endswith(
            "; hooks.CheckedDecay.scheduler.gamma continues with its saved value of 0.5, not 0.9"
        )


def test_a_setting_of_a_late_scheduler_that_training_has_changed_is_not_reported(make, tmp_path):
    for epochs in (1, 2, 3):
        told = fit(tmp_path, epochs, make=make, hooks=[OftenDecay(0.5)])
        assert not [one for one in told if "gamma" in one]


def test_a_late_scheduler_of_a_save_without_its_settings_is_compared_with_what_was_loaded(make, tmp_path):
    fit(tmp_path, 1, make=make, hooks=[LateDecay(0.5)])
    bundle = latest_bundle(tmp_path / "bundles").bundle
    parts = dict(read_bundle(bundle))
    del parts["config"]["hooks"][0]["scheduler"]  # as an older version saved it
    shutil.rmtree(bundle.path)
    save_bundle(tmp_path / "bundles", bundle.step, parts)
    for epochs in (2, 3):
        told = fit(tmp_path, epochs, make=make, hooks=[LateDecay(0.9)])[-1]
        assert "scheduler.gamma continues with its saved value of 0.5, not 0.9" in told
    assert "scheduler" not in fit(tmp_path, 4, make=make, hooks=[LateDecay(0.5)])[-1]


def test_a_scheduler_in_a_hook_without_a_state_has_the_settings_of_this_program(make, tmp_path):
    fit(tmp_path, 1, make=make, **decaying(Decay))
    for epochs in (2, 3):
        told = fit(tmp_path, epochs, make=make, **decaying(Decay, gamma=0.9))
        changed = [one.partition("; ")[2] for one in told if "gamma" in one]
        assert changed == ["hooks.Decay.scheduler.gamma is now 0.9, was 0.5"], "it is reported once"


@pytest.mark.parametrize("what", ["a module in the closure", "an activation", "the evaluation data"])
def test_a_change_is_named_when_nothing_is_left_to_train(make, tmp_path, capsys, what):
    said, before, after = CHANGES[what]
    fit(tmp_path, 1, make=make, **before)
    capsys.readouterr()
    fit(tmp_path, 1, make=make, **after)
    reported = capsys.readouterr().err
    assert (
        "The results come from the settings that the run was trained with, not from those of this" in reported
    )
    assert said in reported


@pytest.mark.parametrize("name", ["alpha", "SCALE"])
def test_a_global_that_the_step_function_reads_is_compared(make, tmp_path, monkeypatch, name):
    fit(tmp_path, 1, make=make, step=reading_globals)
    monkeypatch.setattr(config, "unused", 7)
    assert fit(tmp_path, 2, make=make, step=reading_globals)[-1] == "resumed after 4 updates, 1 epoch done"
    if name == "alpha":
        monkeypatch.setattr(config, "alpha", 0.5)
    else:
        monkeypatch.setitem(globals(), "SCALE", 0.5)
    path = "step.config.alpha" if name == "alpha" else "step.SCALE"
    assert fit(tmp_path, 3, make=make, step=reading_globals)[-1].endswith(f"{path} is now 0.5, was 1.0")


def test_a_finished_run_with_other_settings_says_so_without_a_monitor(make, tmp_path, capsys):
    make(Net(), squared, checkpoint_dir=tmp_path).fit(samples(), epochs=1, batch_size=5)
    make(Net(), squared, checkpoint_dir=tmp_path).fit(samples(), epochs=1, batch_size=5)
    assert capsys.readouterr().err == ""
    make(Net(), doubled, checkpoint_dir=tmp_path).fit(samples(), epochs=1, batch_size=5)
    reported = capsys.readouterr().err
    assert "nothing is left to train: 1 epoch is done. The results come from the settings" in reported
    assert "step_fn is now 'squared #" in reported


def test_config_json_keeps_the_record_of_every_start(make, tmp_path):
    for epochs, delta in ((1, 1.0), (2, 2.0), (3, 2.0)):
        step = closing_over(criterion=nn.HuberLoss(delta=delta))
        make(Net(), step, checkpoint_dir=tmp_path).fit(samples(), epochs=epochs, batch_size=5)
    content = json.loads((tmp_path / "config.json").read_text())
    first, second, third = content["starts"]
    assert [start["step"] for start in content["starts"]] == [0, 4, 8]
    assert first["trainer"]["step"]["criterion"]["delta"] == 1.0
    assert second["changed"] == {
        "trainer.epochs": {"was": 1, "now": 2},
        "trainer.step.criterion.delta": {"was": 1.0, "now": 2.0},
    }
    assert list(third["changed"]) == ["trainer.epochs"]
    assert content["trainer"]["step"]["criterion"]["delta"] == 2.0


def test_a_damaged_config_json_does_not_prevent_a_start(make, tmp_path):
    make(Net(), squared, checkpoint_dir=tmp_path).fit(samples(), epochs=1, batch_size=5)
    (tmp_path / "config.json").write_text("{")
    make(Net(), squared, checkpoint_dir=tmp_path).fit(samples(), epochs=2, batch_size=5)
    assert len(json.loads((tmp_path / "config.json").read_text())["starts"]) == 1


def test_what_training_changes_is_not_a_difference_and_what_the_user_changes_is(make, tmp_path):
    held = {"n": 0, "weight": 1.0}

    def count(values):
        values["n"] += 1

    def step(model, x, y):
        count(held)
        return squared(model, x, y) * held["weight"]

    trainer = make(Net(), step, checkpoint_dir=tmp_path, monitor=None)
    trainer.fit(samples(), epochs=1, batch_size=5)
    trainer.fit(samples(), epochs=2, batch_size=5)
    assert not [entry for entry in read(tmp_path) if entry.event.kind == "alert"]
    held["weight"] = 0.5
    trainer.fit(samples(), epochs=3, batch_size=5)
    (alert,) = [entry.event.data["message"] for entry in read(tmp_path) if entry.event.kind == "alert"]
    assert alert == "since this trainer trained last, step.held.weight is now 0.5, was 1.0"


def test_a_second_fit_with_other_data_is_reported_and_recorded(make, tmp_path):
    trainer = make(Net(), squared, checkpoint_dir=tmp_path, monitor=None)
    x, y = samples()
    trainer.fit((x, y), epochs=1, batch_size=5)
    first = json.loads((tmp_path / "config.json").read_text())["trainer"]
    trainer.fit((x[:10] * 50, y[:10]), epochs=2, batch_size=5)
    alert, *_ = [entry.event.data["message"] for entry in read(tmp_path) if entry.event.kind == "alert"]
    assert alert.startswith("since this trainer trained last, data.source is now 'tensors: float32 10x3,")
    latest = json.loads((tmp_path / "config.json").read_text())["trainer"]
    assert latest["data"]["source"] == "tensors: float32 10x3, float32 10x1"
    assert latest["data"]["samples"] == 10
    assert latest["model"]["weights_at_start"] == first["model"]["weights_at_start"] is not None


def test_what_changed_between_two_fits_is_logged_without_a_folder(make, capsys):
    trainer = make(Net(), reading_globals)
    trainer.fit(samples(), epochs=1, batch_size=5, eval_data=samples(9))
    trainer.fit(samples(), epochs=2, batch_size=5, eval_data=samples(9))
    assert capsys.readouterr().err == ""
    trainer.fit(samples(1), epochs=3, batch_size=5, eval_data=samples(8))
    reported = capsys.readouterr().err
    assert "since this trainer trained last, data.content is now" in reported
    assert "eval_data.content is now" in reported


def test_stages_with_other_training_data_are_noted_in_one_line(make, tmp_path, capsys):
    x, y = samples()
    trainer = make(Net(), squared, checkpoint_dir=tmp_path, monitor=None)
    for epochs, rows in ((1, 5), (2, 10), (3, len(x))):
        trainer.fit((x[:rows], y[:rows]), epochs=epochs, batch_size=5, eval_data=(x[:2], y[:2]))
    printed = capsys.readouterr()
    assert printed.err == ""
    alerts = [entry.event.data for entry in read(tmp_path) if entry.event.kind == "alert"]
    assert [alert["level"] for alert in alerts] == ["info", "info"]
    first = alerts[0]["message"]
    assert first.startswith("since this trainer trained last, data.source is now 'tensors: float32 10x3,")
    assert first.endswith(
        "it continues at epoch 2, after 1 update, with epochs of a different length: 2 batches instead of 1, "
        "and the optimizer continues from there"
    )
    starts = json.loads((tmp_path / "config.json").read_text())["starts"]
    assert all("trainer.data.samples" in start["changed"] for start in starts[1:])


def test_a_stage_is_a_warning_if_a_schedule_does_not_know_its_length(make, capsys):
    x, y = samples()
    trainer = make(Net(), squared, schedule=CosineScheduler(0.1, 0.0, 100))
    trainer.fit((x[:5], y[:5]), epochs=1, batch_size=5)
    capsys.readouterr()
    trainer.fit((x[:10], y[:10]), epochs=2, batch_size=5)
    printed = capsys.readouterr()
    assert "data.source is now" in printed.out
    assert "and the schedule, which counts updates, continue" in printed.err
    assert "data.source is now" not in printed.err


def test_evaluation_data_left_out_of_a_second_fit_is_logged(make, capsys):
    trainer = make(Net(), squared)
    trainer.fit(samples(), epochs=1, batch_size=5)
    trainer.fit(samples(), epochs=2, batch_size=5, eval_data=samples(9))
    assert capsys.readouterr().err == "", "an evaluation that is new needs no warning"
    trainer.fit(samples(), epochs=3, batch_size=5)
    assert "since this trainer trained last, eval_data is now None, was 'tensors:" in capsys.readouterr().err
    trainer.fit(samples(), epochs=4, batch_size=5)
    assert capsys.readouterr().err == ""


def test_a_call_of_evaluate_is_not_the_evaluation_of_a_fit(make, tmp_path, capsys):
    for epochs in (1, 2):
        trainer = make(Net(), squared, checkpoint_dir=tmp_path)
        trainer.evaluate(samples(9))
        trainer.fit(samples(), epochs=epochs, batch_size=5)
        assert json.loads((tmp_path / "config.json").read_text())["trainer"]["eval_data"] is None
    assert capsys.readouterr().err == ""


def test_a_dataset_that_keeps_what_it_reads_is_the_same_in_a_second_fit(make, capsys):
    class Keeping(Rows):
        def __getitem__(self, index):
            fill(self.__dict__.setdefault("kept", {}), index)
            return super().__getitem__(index)

    def fill(kept, index):
        kept[index] = index

    trainer, data = make(Net(), squared), Keeping(0)
    trainer.fit(data, epochs=1, batch_size=5)
    trainer.fit(data, epochs=2, batch_size=5)
    assert capsys.readouterr().err == ""


class Lazy(Dataset):
    def __init__(self, path):
        self.path = path

    def __getitem__(self, index):
        return torch.load(self.path, weights_only=True)[index], torch.zeros(1)

    def __len__(self):
        return 20


def test_a_file_of_a_dataset_that_was_replaced_is_named_on_resume(make, tmp_path):
    data = {"data": Lazy(tmp_path / "x.pt"), "eval_data": Lazy(tmp_path / "eval.pt")}
    for path in ("x.pt", "eval.pt"):
        torch.save(torch.zeros(20, 3), tmp_path / path)
    fit(tmp_path / "run", 1, make=make, **data)
    same = fit(tmp_path / "run", 2, make=make, **data)
    assert "files" not in "".join(same)
    recorded = json.loads((tmp_path / "run/config.json").read_text())["trainer"]["data"]["files"]
    for path in ("x.pt", "eval.pt"):
        torch.save(torch.ones(20, 3), tmp_path / path)
    reported = "".join(fit(tmp_path / "run", 3, make=make, **data))
    assert "eval_data.files.path is now '" in reported
    assert f" data.files.path is now '{(tmp_path / 'x.pt').stat().st_size} bytes #" in reported
    assert f"was {recorded['path']!r}" in reported


def test_a_file_that_the_dataset_creates_is_not_a_difference(make, tmp_path):
    class Caching(Lazy):
        def __getitem__(self, index):
            if not self.path.exists():
                torch.save(torch.zeros(20, 3), self.path)
            return super().__getitem__(index)

    for epochs in (1, 2):
        reported = fit(tmp_path / "run", epochs, make=make, data=Caching(tmp_path / "cache.pt"))
    assert "now" not in "".join(reported)


def test_a_record_of_an_older_version_without_files_is_not_a_difference():
    now = {"step": {}, "data": {"source": "Lazy", "dataset": "Lazy", "files": {"path": "3 bytes #ba7816bf"}}}
    before = {"step": {}, "data": {"source": "Lazy", "dataset": "Lazy"}}
    assert changed_record(now, before) == changed_record(before, now) == []


class Weighted(Net):
    def __init__(self, weights):
        super().__init__()
        self.register_buffer("weights", torch.tensor(weights))
        self.register_buffer("table", torch.full((100,), weights[0]), persistent=False)


def test_a_buffer_that_the_program_sets_differently_is_named(make, tmp_path):
    fit(tmp_path, 1, make=make, model=Weighted([1.0, 2.0]))
    fit(tmp_path, 2, make=make, model=Weighted([1.0, 2.0]))
    for epochs in (3, 4):  # it has no effect in any start
        same, *_, changed = fit(tmp_path, epochs, make=make, model=Weighted([1.0, 3.0]))
        assert same == "resumed after 4 updates, 1 epoch done", (
            "running statistics are not set by the program"
        )
        assert changed.endswith(
            "; the buffer weights continues with its saved value of [1.0, 2.0], not [1.0, 3.0]"
        )
    changed = fit(tmp_path, 5, make=make, model=Weighted([4.0, 2.0]))[-1]
    assert "table continues with its saved value of 'float32 100 #" in changed


def test_a_buffer_of_a_run_that_started_from_another_is_named_at_every_start(make, tmp_path, capsys):
    make(Weighted([1.0, 2.0]), squared, checkpoint_dir=tmp_path / "a").fit(samples(), epochs=1, batch_size=5)
    assert capsys.readouterr().err == ""
    for epochs in (2, 3):
        trainer = make(Weighted([1.0, 3.0]), squared, checkpoint_dir=tmp_path / "b")
        trainer.fit(samples(), epochs=epochs, batch_size=5, resume=tmp_path / "a")
        said = "the buffer weights continues with its saved value of [1.0, 2.0], not [1.0, 3.0]"
        assert said in "".join(capsys.readouterr())


def test_a_model_that_was_trained_in_this_process_sets_no_buffers(make, tmp_path):
    model = Weighted([1.0, 2.0])
    fit(tmp_path, 1, make=make, model=model)
    model.body[1].running_mean.add_(1.0)  # as an interrupted epoch does
    assert fit(tmp_path, 2, make=make, model=model)[-1] == "resumed after 4 updates, 1 epoch done"


def between(make, tmp_path, change, **settings):
    """Train in two fits with a change in between; return what the second one said and recorded as changed."""
    trainer = make(Net(), squared, checkpoint_dir=tmp_path, monitor=None, **settings)
    trainer.fit(samples(), epochs=1, batch_size=5)
    trainer.fit(samples(), epochs=2, batch_size=5)
    assert not alerts(tmp_path), "nothing was changed"
    change(trainer)
    count = len(alerts(tmp_path))
    trainer.fit(samples(), epochs=3, batch_size=5)
    content = json.loads((tmp_path / "config.json").read_text())
    changed = {name: item for name, item in content["starts"][-1]["changed"].items() if "epochs" not in name}
    trainer.fit(samples(), epochs=4, batch_size=5)
    told = alerts(tmp_path)[count:]
    assert len(told) < 2, "it is reported once"
    assert content["trainer"]["optimizer_settings"].items() >= {"momentum": 0.9}.items()
    return "".join(told).removeprefix("since this trainer trained last, "), changed


def alerts(folder):
    return [entry.event.data["message"] for entry in read(folder) if entry.event.kind == "alert"]


def follow(step):
    return 0.01 / (1 + step)


@pytest.mark.parametrize(
    ("change", "path", "now", "was"),
    [
        (lambda trainer: trainer.scale_lr(0.1), "optimizer_settings.lr", 0.01, 0.1),
        (
            lambda trainer: trainer.optimizer.param_groups[0].update(weight_decay=0.5),
            "optimizer_settings.weight_decay",
            0.5,
            0,
        ),
        (lambda trainer: trainer.model.body[1].eval(), "model.evaluating", ["body.1"], []),
    ],
)
def test_a_setting_that_the_program_changes_between_two_fits_is_reported_and_recorded(
    make, tmp_path, change, path, now, was
):
    told, changed = between(make, tmp_path, change)
    assert told == f"{path} is now {now}, was {was}"
    assert changed == {f"trainer.{path}": {"was": was, "now": now}}


def test_a_part_that_is_frozen_between_two_fits_is_reported_and_recorded(make, tmp_path):
    told, changed = between(make, tmp_path, lambda trainer: trainer.model.head.requires_grad_(False))
    assert told == "model.frozen is now ['head'], was []"
    assert changed["trainer.model.frozen"] == {"was": [], "now": ["head"]}


def test_a_scale_of_a_schedule_is_a_change_and_its_rates_are_not(make, tmp_path):
    told, _ = between(make, tmp_path, lambda trainer: trainer.scale_lr(0.5), schedule=follow)
    assert told == "optimizer_settings.lr_scale is now 0.5, was 1.0"


def test_a_torch_scheduler_may_be_stepped_between_two_fits(make, capsys):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    trainer = make(model, squared, optimizer=optimizer)
    for epochs in (1, 2, 3):
        trainer.fit(samples(), epochs=epochs, batch_size=5)
        scheduler.step()
    assert "since this trainer" not in capsys.readouterr().err


def test_what_hooks_change_during_a_fit_is_not_a_change_between_two_fits(make, tmp_path):
    class Shrink:
        def on_epoch_end(self, trainer):
            trainer.scale_lr(0.5)
            trainer.model.body[1].eval()
            trainer.model.body[0].requires_grad_(False)

    trainer = make(Net(), squared, checkpoint_dir=tmp_path, monitor=None, hooks=[Shrink()])
    for epochs in (1, 2, 3):
        trainer.fit(samples(), epochs=epochs, batch_size=5)
    assert not alerts(tmp_path)
    record = json.loads((tmp_path / "config.json").read_text())["trainer"]
    assert record["optimizer_settings"]["lr"] == 0.1


def test_weights_that_the_program_changes_between_two_fits_are_noted_and_recorded(make, tmp_path):
    told, changed = between(make, tmp_path, lambda trainer: trainer.model.head.weight.data.zero_())
    assert told.startswith("the weights were changed: it continues from the new weights")
    assert list(changed) == ["trainer.model.weights_at_start"]


def look_at(trainer):
    trainer.evaluate(samples())
    trainer.find_lr(samples(), batch_size=5, num_steps=10)
    trainer.model.eval()(samples()[0])
    trainer.model.train()
    trainer.model.load_state_dict(trainer.model.state_dict())


def test_looking_at_a_model_between_two_fits_changes_nothing(make, tmp_path):
    assert between(make, tmp_path, look_at) == ("", {})


def test_weights_that_restore_best_has_loaded_are_not_reported_as_changed(make, tmp_path):
    trainer = make(Net(), squared, checkpoint_dir=tmp_path, monitor=None, keep=best("loss"))
    trainer.fit(samples(), epochs=3, batch_size=5)
    trainer.model.head.weight.data.zero_()
    trainer.restore_best()
    trainer.fit(samples(), epochs=4, batch_size=5)
    assert not [one for one in alerts(tmp_path) if "since this trainer" in one]


def test_trainers_that_take_turns_on_a_model_do_not_report_each_other(make, capsys):
    model = Net()
    one, other = make(model, squared), make(model, doubled)
    for epochs in (1, 2, 3):
        one.fit(samples(), epochs=epochs, batch_size=5)
        other.fit(samples(), epochs=epochs, batch_size=5)
    assert "since this trainer" not in "".join(capsys.readouterr())


class Merging(Net):
    """A model whose weights change with its mode, as with adapters that are merged."""

    def train(self, mode=True):
        if mode != self.training:
            self.head.weight.data.mul_(0.5 if mode else 2.0)
        return super().train(mode)


def test_a_model_that_changes_its_weights_with_its_mode_has_not_been_changed(make, capsys):
    trainer = make(Merging(), squared)
    for epochs in (1, 2, 3):
        trainer.fit(samples(), epochs=epochs, batch_size=5)
        trainer.model.eval()
    assert "since this trainer" not in "".join(capsys.readouterr())


def test_a_group_that_is_added_between_two_fits_is_reported_and_recorded(make, tmp_path):
    model = Net()
    optimizer = torch.optim.SGD(model.body.parameters(), lr=0.01)
    model.head.requires_grad_(False)
    trainer = make(model, squared, optimizer=optimizer, checkpoint_dir=tmp_path, monitor=None)
    trainer.fit(samples(), epochs=1, batch_size=5)
    optimizer.add_param_group({"params": list(model.head.requires_grad_(True).parameters()), "lr": 0.1})
    trainer.fit(samples(), epochs=2, batch_size=5)
    assert "the optimizer now has 2 parameter groups; it had 1 before" in alerts(tmp_path)[0]
    record = json.loads((tmp_path / "config.json").read_text())["trainer"]["optimizer_settings"]
    assert [group["parameters"] for group in record.values()] == [["body"], ["head"]]


def test_a_torch_scheduler_that_is_created_between_two_fits_is_not_reported_as_a_change(make, tmp_path):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = make(model, squared, optimizer=optimizer, checkpoint_dir=tmp_path, monitor=None)
    trainer.fit(samples(), epochs=1, batch_size=5)
    torch.optim.lr_scheduler.StepLR(optimizer, 100)
    with trainer.running(2):
        for batch in trainer.epoch(samples(), 5):
            trainer.step(batch)
    assert not alerts(tmp_path)


def descent(**settings):
    """Return the settings of a trainer whose optimizer has those that the user set."""
    return {"config": settings, "optimizer": lambda groups: torch.optim.SGD(groups, **settings)}


def test_a_rate_that_a_resumed_run_ignores_is_not_recorded_as_changed(make, tmp_path):
    fit(tmp_path, 2, make=make, **descent(lr=0.01, weight_decay=0.1))
    for epochs in (3, 4):
        told = fit(tmp_path, epochs, make=make, **descent(lr=0.001, weight_decay=0.1))[-1]
        assert "the optimizer continues with its saved lr of 0.01, not 0.001" in told
        found = summary(tmp_path)
        assert not {"config.lr", "ignored_optimizer_settings.lr"} & found["changed"].keys()
        config = {item["path"]: item["value"] for item in found["config"]}
        assert (config["config.lr"], config["config.weight_decay"]) == (0.01, 0.1)
        record = json.loads((tmp_path / "config.json").read_text())["trainer"]
        assert record["ignored_optimizer_settings"] == {"lr": [0.001]}
        assert record["optimizer_settings"]["lr"] == 0.01
    fit(tmp_path, 5, make=make, **descent(lr=0.01, weight_decay=0.1))
    assert "config.lr" not in summary(tmp_path)["changed"]
    record = json.loads((tmp_path / "config.json").read_text())["trainer"]
    assert "ignored_optimizer_settings" not in record


def test_the_rate_of_a_schedule_takes_effect_and_is_recorded_as_changed(make, tmp_path):
    def scheduled(lr):
        return {**descent(lr=lr), "schedule": lambda step: lr}

    fit(tmp_path, 2, make=make, **scheduled(0.01))
    fit(tmp_path, 3, make=make, **scheduled(0.001))
    changed = summary(tmp_path)["changed"]
    assert changed["config.lr"] == [{"epoch": 2, "was": 0.01, "now": 0.001}]


def test_a_rate_that_was_ignored_and_is_then_set_between_two_fits_is_recorded_as_changed(make, tmp_path):
    fit(tmp_path, 1, make=make, **descent(lr=0.01))
    trainer = make(Net(), squared, checkpoint_dir=tmp_path, monitor=None, **descent(lr=0.001))
    trainer.fit(samples(), epochs=2, batch_size=5)
    assert "config.lr" not in summary(tmp_path)["changed"]
    trainer.optimizer.param_groups[0]["lr"] = 0.001
    trainer.fit(samples(), epochs=3, batch_size=5)
    assert summary(tmp_path)["changed"]["config.lr"] == [{"epoch": 2, "was": 0.01, "now": 0.001}]


class Averaged:
    """A hook that averages the weights, and saves the average."""

    def __init__(self, model):
        self.average = torch.optim.swa_utils.AveragedModel(model)

    def on_epoch_end(self, trainer):
        self.average.update_parameters(trainer.model)

    def state_dict(self):
        return self.average.state_dict()

    def load_state_dict(self, state):
        self.average.load_state_dict(state)


def test_the_first_values_of_what_a_hook_saves_are_not_compared(make, data, tmp_path, capsys):
    for epochs in (2, 3):
        torch.manual_seed(epochs)
        model = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 1))
        capsys.readouterr()
        make(model, hooks=[Averaged(model)], checkpoint_dir=tmp_path).fit(data, epochs=epochs, batch_size=8)
    assert "average" not in "".join(capsys.readouterr())
