"""Differences from the saved run are reported: frozen parts, structure, dtypes and optimizer settings."""

import functools
import re

import pytest
import torch
from torch import nn

from flodl import FlowBuilder, set_verbosity
from flodl.core import TrainError
from flodl.graph import structure_of
from flodl.monitor import read
from flodl.train import Phase
from flodl.train.saving.changes.changed_optimizer import changed_optimizer
from flodl.train.saving.changes.differences import changed_settings

from ...scheduler_hooks import Saved, Stepping


def alerts(folder):
    return [entry.event.data["message"] for entry in read(folder) if entry.event.kind == "alert"]


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.0), nn.Linear(8, 1))


def frozen_model(*names):
    model = small_model()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in names)
    return model


def trainable(model):
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def test_a_run_restores_frozen_parts_from_its_own_folder_and_reports_the_conflict(make, data, tmp_path):
    make(frozen_model("0.weight"), checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    again = make(frozen_model(), checkpoint_dir=tmp_path, monitor=None)
    again.fit(data, epochs=2, batch_size=8)
    assert trainable(again.model) == ["0.bias", "3.weight", "3.bias"]
    said = "; 0.weight is frozen, as it was saved; this program has it trainable"
    assert alerts(tmp_path)[-1].endswith(f"1 epoch done{said}")


def test_parts_saved_as_trainable_are_trained_although_the_program_froze_them(make, data, tmp_path):
    make(frozen_model(), checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    again = make(
        frozen_model("0.weight", "0.bias", "3.weight", "3.bias"), checkpoint_dir=tmp_path, monitor=None
    )
    again.fit(data, epochs=2, batch_size=8)
    assert len(trainable(again.model)) == 4
    names = "0.weight, 0.bias, 3.weight and 1 more"
    said = f"{names} are trainable, as they were saved; this program has them frozen"
    assert alerts(tmp_path)[-1].endswith(said)


def test_starting_from_another_folder_keeps_what_this_program_thawed(make, data, tmp_path):
    make(frozen_model("0.weight", "0.bias"), checkpoint_dir=tmp_path / "a").fit(data, epochs=1, batch_size=8)
    for epochs in (2, 3):  # the second time it resumes from its own folder
        model = frozen_model()
        before = model[0].weight.clone()
        trainer = make(model, checkpoint_dir=tmp_path / "b", monitor=None)
        trainer.fit(data, epochs=epochs, batch_size=8, resume=tmp_path / "a")
        assert len(trainable(model)) == 4
        assert not torch.equal(model[0].weight, before)
    said = "0.weight and 0.bias are trainable, as this program has them; they were saved frozen"
    first, second = alerts(tmp_path / "b")
    assert first.endswith(said)
    assert second.endswith(f"2 epochs done; its own folder takes precedence over '{tmp_path / 'a'}'")


def test_starting_from_another_folder_keeps_what_this_program_has_in_evaluation(make, data, tmp_path):
    make(checkpoint_dir=tmp_path / "a").fit(data, epochs=1, batch_size=8)
    trainer = make(checkpoint_dir=tmp_path / "b", monitor=None)
    trainer.model[2].eval()
    trainer.fit(data, epochs=2, batch_size=8, resume=tmp_path / "a")
    assert not trainer.model[2].training
    assert alerts(tmp_path / "b")[-1].endswith(
        "2 is in evaluation, as this program has it; it was saved in training"
    )


def test_a_model_in_evaluation_mode_as_a_whole_is_not_a_difference(make, data, tmp_path):
    make(checkpoint_dir=tmp_path, monitor=None).fit(data, epochs=1, batch_size=8)
    trainer = make(checkpoint_dir=tmp_path, monitor=None)
    trainer.model.eval()
    trainer.fit(data, epochs=2, batch_size=8)
    assert alerts(tmp_path)[-1].endswith("1 epoch done")


def test_parts_frozen_by_a_phase_are_not_a_conflict_with_the_same_program(make, data, tmp_path):
    def model():
        encoder = FlowBuilder(nn.Linear(3, 8)).through(nn.Dropout(0.1)).label("encoder").build()
        return FlowBuilder(encoder).through(nn.Linear(8, 1)).build()

    for epochs in (1, 2):
        phase = Phase(0, freeze=["encoder"], eval_mode=True)
        trainer = make(model(), hooks=[phase], checkpoint_dir=tmp_path, monitor=None)
        trainer.fit(data, epochs=epochs, batch_size=8)
    assert trainer.model.is_frozen("encoder")
    assert alerts(tmp_path)[-1].endswith("1 epoch done")


def looping(turns):
    torch.manual_seed(0)
    builder = FlowBuilder(nn.Linear(3, 3)).loop_body(nn.Linear(3, 3)).for_n(turns)
    return builder.through(nn.Linear(3, 1)).build()


class Around(nn.Module):
    def __init__(self, graph):
        super().__init__()
        self.inner = graph

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize(("wrap", "name"), [(lambda graph: graph, ""), (Around, " 'inner'")])
def test_a_graph_with_a_different_structure_is_rejected_unless_that_is_allowed(
    make, data, tmp_path, wrap, name
):
    def fit(turns, epochs, **options):
        trainer = make(wrap(looping(turns)), checkpoint_dir=tmp_path, monitor=None)
        before = [parameter.clone() for parameter in trainer.model.parameters()]
        try:
            trainer.fit(data, epochs=epochs, batch_size=8, **options)
        except TrainError:
            assert all(map(torch.equal, before, trainer.model.parameters()))
            assert (trainer.updates, trainer.epochs) == (0, 0)
            raise
        return alerts(tmp_path)[-1:]

    fit(3, 1)
    now, then = looping(5).structural_hash, looping(3).structural_hash
    difference = f"the graph{name} is built differently (structural hash {now}, was {then})"
    with pytest.raises(TrainError, match=re.escape(f"{difference}. Nothing was loaded.")):
        fit(5, 2)
    assert fit(3, 2)[0].endswith("1 epoch done")
    assert fit(5, 3, allow_different_structure=True)[0].endswith(f"; {difference}")


def dropping(p):
    torch.manual_seed(0)
    return FlowBuilder(nn.Linear(3, 4)).through(nn.Dropout(p)).through(nn.Linear(4, 1)).build()


def test_a_module_that_makes_the_structure_different_is_named(make, data, tmp_path):
    make(dropping(0.1), checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    message = r"What differs: model\..* is now 'Dropout\(p=0\.5.* was 'Dropout\(p=0\.1.*Nothing was loaded"
    with pytest.raises(TrainError, match=message):
        make(dropping(0.5), checkpoint_dir=tmp_path).resume(data, 8)


def test_the_weights_in_a_bundle_of_a_graph_have_its_structural_hash(make, data, tmp_path):
    make(looping(3), checkpoint_dir=tmp_path, ema=0.9).fit(data, epochs=1, batch_size=8)
    (bundle,) = (tmp_path / "bundles").iterdir()
    for name in ("model.fdl", "average.fdl"):
        found = [looping(n).load_checkpoint(bundle / name).same_function for n in (3, 5)]
        assert found == [True, False]


def test_a_custom_loop_can_allow_a_different_structure_too(make, data, tmp_path):
    make(looping(3), checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    trainer = make(looping(5), checkpoint_dir=tmp_path)
    with pytest.raises(TrainError, match=r"built differently .* allow_different_structure=True"):
        trainer.resume(data, 8)
    assert trainer.resume(data, 8, allow_different_structure=True)


class Curved(nn.Module):
    def forward(self, x):
        return torch.tanh(x)


def curved():
    torch.manual_seed(0)
    return FlowBuilder(nn.Linear(3, 1)).through(Curved()).build()


def test_a_run_is_not_resumed_with_another_forward_of_a_module_class(make, data, tmp_path, monkeypatch):
    make(curved(), checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    assert make(curved(), checkpoint_dir=tmp_path).resume(data, 8)
    monkeypatch.setattr(Curved, "forward", lambda self, x: torch.sigmoid(x))
    trainer = make(curved(), checkpoint_dir=tmp_path)
    with pytest.raises(
        TrainError, match=r"built differently .* The code of its functions and of your module"
    ):
        trainer.resume(data, 8)
    assert trainer.resume(data, 8, allow_different_structure=True)


@pytest.mark.parametrize("written_by", ["an earlier version of flodl", "another version of Python"])
def test_code_that_cannot_be_compared_does_not_prevent_resuming(
    make, data, tmp_path, monkeypatch, written_by
):
    from flodl.checkpoint import latest_bundle, read_bundle, save_bundle

    make(curved(), checkpoint_dir=tmp_path / "a").fit(data, epochs=1, batch_size=8)
    bundle = latest_bundle(tmp_path / "a" / "bundles").bundle
    trainer = (parts := dict(read_bundle(bundle)))["trainer"]
    if written_by == "another version of Python":
        trainer["structures"][""]["flodl_python"] = "3.1"
    else:
        trainer["structural_hashes"][""] = structure_of(curved()).earlier
        del trainer["structures"]
    save_bundle(tmp_path / "b" / "bundles", bundle.step, parts)
    monkeypatch.setattr(Curved, "forward", lambda self, x: torch.sigmoid(x))
    assert make(curved(), checkpoint_dir=tmp_path / "b").resume(data, 8)
    with pytest.raises(TrainError):
        make(looping(3), checkpoint_dir=tmp_path / "b").resume(data, 8)


def test_a_different_dtype_of_the_model_is_reported(make, data, tmp_path):
    make(checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    doubled = tuple(part.double() for part in data)
    make(small_model().double(), checkpoint_dir=tmp_path, monitor=None).fit(doubled, epochs=2, batch_size=8)
    said = "; 0.weight, 0.bias, 3.weight and 1 more are now float64, saved as float32"
    assert alerts(tmp_path)[-1].endswith(said)


@pytest.mark.parametrize(
    ("optimizer", "first", "second", "said"),
    [
        ("AdamW", {"betas": (0.9, 0.999)}, {"betas": (0.5, 0.9)}, "betas of (0.9, 0.999), not (0.5, 0.9)"),
        ("AdamW", {"amsgrad": True}, {}, "amsgrad of True, not False"),
        ("AdamW", {}, {"maximize": True}, "maximize of False, not True"),
        ("SGD", {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9}, "nesterov of True, not False"),
        ("AdamW", {}, {"fused": False}, None),
        ("AdamW", {}, {"foreach": True}, None),
        ("AdamW", {"betas": [0.9, 0.99]}, {"betas": (0.9, 0.99)}, None),
    ],
)
def test_an_ignored_optimizer_setting_is_reported(make, data, tmp_path, optimizer, first, second, said):
    for epochs, settings in ((1, first), (2, second)):
        made = getattr(torch.optim, optimizer)
        trainer = make(
            optimizer=lambda groups, made=made, settings=settings: made(groups, lr=0.01, **settings),
            checkpoint_dir=tmp_path,
            monitor=None,
        )
        trainer.fit(data, epochs=epochs, batch_size=8)
    ending = (
        "1 epoch done" if said is None else f"1 epoch done; the optimizer continues with its saved {said}"
    )
    assert alerts(tmp_path)[-1].endswith(ending)


def warm_up(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 4))


def late_warm_up(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))


def sequence(optimizer):
    linear = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [linear, warm_up(optimizer)], [2])


def one_cycle(optimizer):
    rates = [2 * group["lr"] for group in optimizer.param_groups]
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=50)


def start_scheduled(make, data, folder, epochs, scheduled, rates, *, hook=Saved):
    """Train with a scheduler of torch and two groups, and return the optimizer and the last message."""
    model = small_model()
    groups = [{"params": part.parameters(), "lr": lr} for part, lr in zip((model[0], model[3]), rates)]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    hooks = [hook(scheduled(optimizer))]
    make(model, optimizer=optimizer, hooks=hooks, checkpoint_dir=folder, monitor=None).fit(
        data, epochs=epochs, batch_size=8
    )
    return optimizer, (alerts(folder) or [""])[-1]


@pytest.mark.parametrize(
    ("scheduled", "name", "rates"),
    [
        (warm_up, "initial_lr", ("0.1", "0.01")),
        (late_warm_up, "initial_lr", ("0.1", "0.01")),
        (sequence, "initial_lr", ("0.1", "0.01")),
        (one_cycle, "max_lr", ("0.2", "0.02")),
    ],
)
def test_the_rate_that_the_user_wrote_for_a_torch_scheduler_is_compared_not_that_of_the_moment(
    make, data, tmp_path, scheduled, name, rates
):
    start_scheduled(make, data, tmp_path, 1, scheduled, (0.1, 0.5))
    _, same = start_scheduled(make, data, tmp_path, 2, scheduled, (0.1, 0.5))
    assert same.endswith("1 epoch done")
    optimizer, told = start_scheduled(make, data, tmp_path, 3, scheduled, (0.01, 0.5))
    assert told.endswith(
        f"2 epochs done; the optimizer continues with its saved {name} of {rates[0]}, not {rates[1]}"
    )
    assert optimizer.param_groups[0][name] == pytest.approx(float(rates[0]))


def test_a_scheduler_that_is_not_saved_takes_the_rate_of_the_program(make, data, tmp_path):
    start_scheduled(make, data, tmp_path, 1, warm_up, (0.1, 0.5), hook=Stepping)
    optimizer, told = start_scheduled(make, data, tmp_path, 3, warm_up, (0.01, 0.5), hook=Stepping)
    assert optimizer.param_groups[0]["lr"] == 0.01
    assert "continues with its saved" not in told


def test_a_scheduler_that_the_saved_run_did_not_have_is_compared_by_the_rate_of_the_optimizer():
    own, loaded = [{"lr": 0.0, "initial_lr": 0.1}], [{"lr": 0.1}]
    assert changed_optimizer(own, loaded, at_start=loaded, scheduled=False) == []
    own[0]["initial_lr"] = 0.2
    assert changed_optimizer(own, loaded, at_start=loaded, scheduled=False) == [
        "the optimizer continues with its saved lr of 0.1, not 0.2"
    ]


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_difference_is_logged_without_a_monitor_too_and_a_plain_resume_is_not(
    make, data, tmp_path, capsys, by_hand
):
    set_verbosity("normal")
    for epochs, clip_norm in ((1, None), (2, None), (3, 2.0)):
        trainer = make(checkpoint_dir=tmp_path, clip_norm=clip_norm)
        if by_hand:
            trainer.resume(data, batch_size=8)
            while trainer.epochs < epochs:
                for batch in trainer.epoch(data, batch_size=8):
                    trainer.step(batch)
            trainer.save()
        else:
            trainer.fit(data, epochs=epochs, batch_size=8)
        reported = capsys.readouterr().err
        assert reported.count("resumed") == reported.count("clip_norm is now 2.0, was None") == (epochs == 3)


def test_a_bundle_without_these_facts_still_loads(make, data, tmp_path):
    from flodl.checkpoint import latest_bundle, read_bundle, save_bundle

    make(looping(3), checkpoint_dir=tmp_path / "a").fit(data, epochs=1, batch_size=8)
    bundle = latest_bundle(tmp_path / "a" / "bundles").bundle
    parts = dict(read_bundle(bundle))
    for name in ("parameters", "structural_hashes", "modes_at_start", "optimizer_at_start"):
        del parts["trainer"][name]
    save_bundle(tmp_path / "b" / "bundles", bundle.step, parts)
    assert len(make(looping(5), checkpoint_dir=tmp_path / "b").fit(data, epochs=2, batch_size=8).history) == 2


@pytest.mark.parametrize(
    ("at_start", "reported"),
    [
        (None, ["the optimizer continues with its saved lr of 0.05, not 0.1"]),  # an older bundle
        ([{"lr": 0.1}], []),
        ([{"lr": 0.2}], ["the optimizer continues with its saved lr of 0.05, not 0.1"]),
    ],
)
def test_only_settings_that_differ_from_the_start_of_the_run_are_reported(at_start, reported):
    assert changed_optimizer([{"lr": 0.1}], [{"lr": 0.05}], at_start=at_start, scheduled=False) == reported


class Falling:
    def __call__(self, step):
        return 0.1 * 0.9**step


def falling(decay, step):
    return 0.1 * decay**step


@pytest.mark.parametrize(
    "schedule",
    [lambda: lambda step: 0.1, Falling, lambda: functools.partial(falling, 0.9), lambda: Falling().__call__],
)
def test_a_schedule_that_is_a_function_is_the_same_in_another_process(make, data, tmp_path, schedule):
    # Both are alive, so their addresses differ as they do in two processes.
    first, second = schedule(), schedule()
    make(checkpoint_dir=tmp_path, schedule=first).fit(data, epochs=1, batch_size=8)
    make(checkpoint_dir=tmp_path, schedule=second, monitor=None).fit(data, epochs=2, batch_size=8)
    assert alerts(tmp_path)[-1].endswith("1 epoch done")


def test_the_addresses_in_an_older_bundle_are_not_compared(make):
    def rate(step):
        return 0.1

    assert not list(changed_settings(make(schedule=rate)._run.session, {"schedule": repr(rate)}))


def test_a_different_schedule_function_is_reported(make, data, tmp_path):
    def slow(step):
        return 0.01

    def fast(step):
        return 0.1

    make(checkpoint_dir=tmp_path, schedule=slow).fit(data, epochs=1, batch_size=8)
    make(checkpoint_dir=tmp_path, schedule=fast, monitor=None).fit(data, epochs=2, batch_size=8)
    assert re.search(r"schedule is now '.*fast #\w+', was '.*slow #\w+'", alerts(tmp_path)[-1])


def test_different_numbers_in_the_same_schedule_function_are_reported(make, data, tmp_path):
    def constant(rate):
        return lambda step: rate

    make(checkpoint_dir=tmp_path, schedule=constant(0.1)).fit(data, epochs=1, batch_size=8)
    make(checkpoint_dir=tmp_path, schedule=constant(0.2), monitor=None).fit(data, epochs=2, batch_size=8)
    was = "schedule is now 'lambda step: rate (rate=0.2)', was 'lambda step: rate (rate=0.1)'"
    assert was in alerts(tmp_path)[-1]


def test_changed_settings_of_the_user_are_reported(make, data, tmp_path):
    before, after = {"width": 8, "augment": {"flip": True}}, {"width": 9, "augment": {"flip": False}}
    make(checkpoint_dir=tmp_path, config=before).fit(data, epochs=1, batch_size=8)
    make(checkpoint_dir=tmp_path, config=after, monitor=None).fit(data, epochs=2, batch_size=8)
    assert "config.width is now 9, was 8; config.augment.flip is now False, was True" in alerts(tmp_path)[-1]


def test_a_setting_of_the_user_that_is_missing_is_not_one_that_is_none(make, data, tmp_path):
    before, after = {"mixup": 0.2, "width": 8}, {"pad": 2, "width": None, "new": None}
    make(checkpoint_dir=tmp_path, config=before).fit(data, epochs=1, batch_size=8)
    make(checkpoint_dir=tmp_path, config=after, monitor=None).fit(data, epochs=2, batch_size=8)
    assert alerts(tmp_path)[-1].endswith(
        "config.pad is now 2, was not set before; config.width is now None, was 8; "
        "config.mixup is no longer set, was 0.2"
    )
