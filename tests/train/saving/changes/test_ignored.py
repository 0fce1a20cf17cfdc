"""Options of a program that a resumed run ignores are not recorded as changed."""

import argparse
import json

import pytest
import torch
from torch import nn

from flodl.monitor import read
from flodl.monitor.snapshot import summary
from flodl.optim import CosineScheduler

from ...scheduler_hooks import Saved


def alerts(folder):
    return [entry.event.data["message"] for entry in read(folder) if entry.event.kind == "alert"]


def squared(model, x, y):
    return (model["head"](model["body"](x)) - y).square().mean()


def two_rates(body, head, config, **settings):
    """Return the model and the settings of a trainer with two parameter groups."""
    model = nn.ModuleDict({"body": nn.Linear(3, 4), "head": nn.Linear(4, 1)})
    groups = [{"params": model["body"].parameters()}, {"params": model["head"].parameters(), "lr": head}]
    optimizer = torch.optim.SGD(groups, lr=body)
    return model, {"optimizer": optimizer, "config": config, "monitor": None, **settings}


OPTIONS = {
    "flat": lambda body, head: {"learning_rate": body, "head.lr": head},
    "nested": lambda body, head: {"optim": {"learningRate": body}, "head": {"lr": head}},
    "argparse": lambda body, head: argparse.Namespace(base_lr=body, head_lr=head),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_options_that_a_resumed_run_ignores_are_reported_as_ignored_whatever_their_names(
    make, data, tmp_path, options
):
    def start(epochs, body, head):
        model, settings = two_rates(body, head, options(body, head))
        make(model, squared, checkpoint_dir=tmp_path, **settings).fit(data, epochs=epochs, batch_size=8)
        return summary(tmp_path), json.loads((tmp_path / "config.json").read_text())["starts"][-1]

    start(1, 0.01, 0.1)
    found, record = start(2, 0.001, 0.05)
    (told,) = [alert for alert in alerts(tmp_path) if "config." in alert]
    assert told.count(" is ignored: it is now 0.001, was 0.01") == 1
    assert told.count(" is ignored: it is now 0.05, was 0.1") == 1
    assert not [path for path in found["changed"] if path.startswith("config.")]
    assert sorted(each[0]["value"] for each in found["ignored"].values()) == [0.001, 0.05]
    assert {each[0]["epoch"] for each in found["ignored"].values()} == {1}
    assert list(record["changed"]) == ["trainer.epochs"]
    assert sorted(record["ignored"].values()) == [0.001, 0.05]
    # Those of the first start apply again, as they did throughout.
    found, record = start(3, 0.01, 0.1)
    assert "config." not in alerts(tmp_path)[-1]
    assert not [path for path in found["changed"] if path.startswith("config.")]
    assert (list(record["changed"]), "ignored" in record) == (["trainer.epochs"], False)


def test_a_rate_of_a_group_that_keeps_its_ratio_to_a_schedule_is_ignored(make, data, tmp_path):
    def start(epochs, base, head):
        model, settings = two_rates(base, head, {"lr": base, "head_lr": head, "head": {"lr": head}})
        settings["schedule"] = CosineScheduler(base, 0.0, 100)
        make(model, squared, checkpoint_dir=tmp_path, **settings).fit(data, epochs=epochs, batch_size=8)

    start(1, 0.01, 0.1)
    start(2, 0.02, 0.05)
    told = alerts(tmp_path)[-1]
    for line in (
        "config.lr is now 0.02, was 0.01",
        "config.head_lr is ignored: it is now 0.05, was 0.1",
        "config.head.lr is ignored: it is now 0.05, was 0.1",
    ):
        assert line in told
    found = summary(tmp_path)
    assert found["changed"]["config.lr"] == [{"epoch": 1, "was": 0.01, "now": 0.02}]
    assert found["ignored"]["config.head.lr"] == [{"epoch": 1, "value": 0.05}]
    assert sorted(found["ignored"]) == ["config.head.lr", "config.head_lr"]


def test_an_option_with_the_value_of_an_ignored_one_but_another_meaning_has_changed(make, data, tmp_path):
    for epochs, lr, least in ((1, 0.01, 0.0), (2, 0.001, 0.001)):
        model, settings = two_rates(lr, 0.1, {"lr": lr, "min_lr": least, "dropout": lr})
        make(model, squared, checkpoint_dir=tmp_path, **settings).fit(data, epochs=epochs, batch_size=8)
    assert {"config.min_lr", "config.dropout"} <= summary(tmp_path)["changed"].keys()
    assert list(summary(tmp_path)["ignored"]) == ["config.lr"]
    assert "config.min_lr is now 0.001, was 0.0" in alerts(tmp_path)[-1]


def test_an_option_that_the_step_function_reads_too_has_changed(make, data, tmp_path):
    def start(epochs, decay, lr):
        options = {"weight_decay": decay, "lr": lr}

        def step(model, x, y):
            penalty = sum(p.square().sum() for p in model.parameters())
            return squared(model, x, y) + options["weight_decay"] * penalty

        model, settings = two_rates(options["lr"], 0.1, options)
        settings["optimizer"].param_groups[0]["weight_decay"] = options["weight_decay"]
        make(model, step, checkpoint_dir=tmp_path, **settings).fit(data, epochs=epochs, batch_size=8)
        return summary(tmp_path), json.loads((tmp_path / "config.json").read_text())["starts"][-1]

    start(1, 0.0, 0.01)
    found, record = start(2, 0.4, 0.001)
    told = alerts(tmp_path)[-1]
    assert "config.weight_decay is now 0.4, was 0.0" in told
    assert "the optimizer continues with its saved weight_decay of 0, not 0.4" in told
    # It reads another option from the same dict, and not this one.
    assert "config.lr is ignored: it is now 0.001, was 0.01" in told
    assert "step.options.lr" not in told
    assert found["changed"]["config.weight_decay"] == [{"epoch": 1, "was": 0.0, "now": 0.4}]
    assert list(found["ignored"]) == ["config.lr"]
    assert record["changed"]["trainer.config.weight_decay"] == {"was": 0.0, "now": 0.4}
    assert record["ignored"] == {"trainer.config.lr": 0.001}
    found, record = start(3, 0.0, 0.01)
    assert "config.weight_decay is now 0.0, was 0.4" in alerts(tmp_path)[-1]
    assert record["changed"]["trainer.config.weight_decay"] == {"was": 0.4, "now": 0.0}


class Decay:
    """A hook whose state contains its setting."""

    def __init__(self, gamma):
        self.gamma = gamma

    def on_epoch_end(self, trainer):
        pass

    def state_dict(self):
        return {"gamma": self.gamma}

    def load_state_dict(self, state):
        self.gamma = state["gamma"]


def test_a_seed_and_a_setting_of_a_hook_that_are_ignored_are_not_recorded_as_changed(make, data, tmp_path):
    def start(epochs, seed, gamma):
        model = nn.Linear(3, 1)
        torch.manual_seed(seed)
        settings = {"hooks": [Decay(gamma)], "config": {"seed": seed, "decay": {"gamma": gamma}}}
        make(model, checkpoint_dir=tmp_path, monitor=None, seed=None, **settings).fit(
            data, epochs=epochs, batch_size=8
        )
        return summary(tmp_path), json.loads((tmp_path / "config.json").read_text())["starts"][-1]

    start(1, 1, 0.5)
    for epochs in (2, 3):
        found, record = start(epochs, 2, 0.9)
        assert not [path for path in found["changed"] if path.startswith("config.")]
        assert found["ignored"]["config.decay.gamma"][0] == {"epoch": 1, "value": 0.9}
        assert found["ignored"]["config.seed"][0] == {"epoch": 1, "value": 2}
        assert list(record["changed"]) == ["trainer.epochs"]
    first = next(alert for alert in alerts(tmp_path) if "config." in alert)
    assert "config.seed is ignored: it is now 2, was 1" in first
    assert "config.decay.gamma is ignored: it is now 0.9, was 0.5" in first
    found, record = start(4, 1, 0.5)
    assert not [path for path in found["changed"] if path.startswith("config.")]
    assert list(record["changed"]) == ["trainer.epochs"]


def test_a_rate_that_the_program_scales_first_is_ignored_too(make, data, tmp_path):
    def start(epochs, lr, batch=64):
        model, settings = two_rates(lr * batch / 256, 0.1, {"lr": lr, "batch": batch})
        make(model, squared, checkpoint_dir=tmp_path, **settings).fit(data, epochs=epochs, batch_size=8)
        return summary(tmp_path), alerts(tmp_path)

    start(1, 0.1)
    found, told = start(2, 0.2)
    assert "config.lr is ignored: it is now 0.2, was 0.1" in told[-1]
    assert list(found["ignored"]) == ["config.lr"]
    found, told = start(3, 0.1)
    assert "config.lr" not in told[-1]
    # The batch changed, too, so all that is certain is that the rate of the optimizer is the saved one.
    found, told = start(4, 0.3, batch=128)
    assert "config.lr is now 0.3, was 0.1; the resumed run keeps its saved lr" in told[-1]


class Warm(Saved):
    """A warm-up of torch from 0, whose state is saved."""

    def __init__(self, optimizer):
        super().__init__(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 4)))


def test_the_rate_that_was_written_for_a_warm_up_from_zero_is_recorded_and_ignored_on_resume(
    make, data, tmp_path
):
    def start(epochs, lr):
        model, settings = two_rates(lr, 0.5, {"lr": lr})
        hooks = [Warm(settings["optimizer"])]
        make(model, squared, hooks=hooks, checkpoint_dir=tmp_path, **settings).fit(
            data, epochs=epochs, batch_size=8
        )
        record = json.loads((tmp_path / "config.json").read_text())["trainer"]
        return summary(tmp_path), alerts(tmp_path), record

    *_, record = start(1, 0.01)
    groups = record["optimizer_settings"]
    assert [groups[name]["initial_lr"] for name in ("group_1", "group_2")] == [0.01, 0.5]
    found, told, record = start(2, 0.001)
    assert "config.lr is ignored: it is now 0.001, was 0.01" in told[-1]
    assert list(found["ignored"]) == ["config.lr"]
    assert record["ignored_optimizer_settings"] == {"initial_lr": [0.001]}
    assert record["optimizer_settings"]["group_1"]["initial_lr"] == 0.01


def test_an_ignored_option_is_compared_with_the_value_that_the_run_uses(make, data, tmp_path):
    def start(epochs, lr, head=0.1, **options):
        config = {"lr": lr, "head": {"lr": head}, "my_head_lr": head, **options}
        model, settings = two_rates(lr, head, config)
        make(model, squared, checkpoint_dir=tmp_path, **settings).fit(data, epochs=epochs, batch_size=8)
        return [line for line in "; ".join(alerts(tmp_path)[-1:]).split("; ") if line.startswith("config.")]

    start(1, 0.01)
    assert start(2, 0.001) == ["config.lr is ignored: it is now 0.001, was 0.01"]
    for epochs in (3, 4):
        assert start(epochs, 0.5, 0.3) == [
            "config.lr is ignored: it is now 0.5, was 0.01",
            "config.head.lr is ignored: it is now 0.3, was 0.1",
            "config.my_head_lr is ignored: it is now 0.3, was 0.1",
        ]
    # Another option is compared with its last value.
    assert start(5, 0.01, 0.2, width=8) == [
        "config.head.lr is ignored: it is now 0.2, was 0.1",
        "config.my_head_lr is ignored: it is now 0.2, was 0.1",
        "config.width is now 8, was not set before",
    ]
    assert start(6, 0.01, width=8) == []
    assert start(7, 0.01, width=9) == ["config.width is now 9, was 8"]
