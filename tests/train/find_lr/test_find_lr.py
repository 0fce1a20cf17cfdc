"""The search for a learning rate: what it finds, and that it changes nothing."""

import copy
import random
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flodl import Loader, Trainer, TrainStep
from flodl.core import TrainError
from flodl.core.rng_state import RngState
from flodl.engine import trial_copy
from flodl.optim import CosineScheduler
from flodl.train import FindLrResult
from flodl.train.find_lr.result import smooth

from ...same_state import same

COUNT = {"calls": 0}


def compute_loss(model, x, y):
    COUNT["calls"] += 1
    return cross_entropy(model(x), y)


@pytest.fixture
def data():
    torch.manual_seed(3)
    x = torch.randn(256, 8)
    return x, x[:, :4].argmax(dim=1)


def make(**settings):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
    optimizer = settings.pop("optimizer", lambda groups: torch.optim.AdamW(groups, lr=1e-3))
    return Trainer(
        model, compute_loss, optimizer=optimizer, device="cpu", monitor=False, log_every=None, **settings
    )


def state_of(trainer):
    return copy.deepcopy(
        (trainer.model.state_dict(), trainer.optimizer.state_dict(), trainer.train_step.state_dict())
    )


def test_the_suggestion_is_where_the_loss_falls_and_below_divergence(data):
    result = make().find_lr(data, 32, max_lr=10.0)
    assert len(result.rates) == len(result.losses) <= 100
    assert result.rates[0] == 1e-7
    assert 1e-4 < result.suggestion < 1.0
    assert "the loss falls fastest there" in result.reason
    assert str(result).startswith("lr=")


@pytest.mark.parametrize("settings", [{}, {"schedule": CosineScheduler(1e-3, min=0.0, total=99)}])
def test_the_run_continues_as_if_there_had_been_no_search(data, settings):
    plain, searched = make(**settings), make(**settings)
    for trainer in (plain, searched):
        flodl_seed = 7
        torch.manual_seed(flodl_seed)
        random.seed(flodl_seed)
        np.random.seed(flodl_seed)
        if trainer is searched:
            before, generators, calls = state_of(trainer), RngState.capture(), dict(COUNT)
            trainer.find_lr(data, 32)
            assert same(before, state_of(trainer))
            assert generators.same_on_cpu(RngState.capture())
            assert calls == COUNT, "what the step function writes is restored"
        trainer.fit(data, epochs=2, batch_size=32)
    assert plain.history == searched.history
    assert same(plain.model.state_dict(), searched.model.state_dict())


def test_a_search_between_two_epochs_changes_nothing(data):
    plain, searched = make(), make()
    for trainer in (plain, searched):
        torch.manual_seed(7)
        trainer.fit(data, epochs=1, batch_size=32)
        if trainer is searched:
            trainer.find_lr(data, 32)
        trainer.fit(data, epochs=2, batch_size=32)
    assert plain.history == searched.history


@pytest.mark.parametrize("schedule", [None, CosineScheduler(0.1, 0.0, 20)])
def test_a_search_after_training_reports_no_schedule_that_restarts(data, capsys, schedule):
    trainer = make(optimizer=lambda groups: torch.optim.AdamW(groups, lr=0.1), schedule=schedule)
    trainer.fit(data, epochs=1, batch_size=32)
    capsys.readouterr()
    trainer.find_lr(data, 32, num_steps=20)
    assert "schedule" not in capsys.readouterr().err


def test_the_cursor_of_a_loader_stays_where_it_was(data):
    loader = Loader(data, 32, seed=5)
    next(iter(loader))
    before = loader.state_dict()
    make().find_lr(loader, num_steps=30)
    assert loader.state_dict() == before


def test_groups_keep_the_ratios_of_their_rates(data):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    groups = [{"params": model[0].parameters(), "lr": 0.01}, {"params": model[1].parameters(), "lr": 0.1}]
    optimizer = torch.optim.SGD(groups)
    step = TrainStep(model, optimizer, compute_loss, schedule=lambda at: 0.1 * at)
    copied = trial_copy(step, schedule=lambda at: 0.5 * (at + 1))
    copied(*data)
    assert copied.schedule.ratios == pytest.approx((0.1, 1.0))
    assert copied.schedule.lr == 1.0
    assert [float(group["lr"]) for group in optimizer.param_groups] == [0.0, 0.0]


def test_a_search_before_a_warm_up_from_zero_keeps_the_ratios_of_the_rates_of_the_groups(data):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    groups = [{"params": model[0].parameters(), "lr": 0.01}, {"params": model[1].parameters(), "lr": 0.1}]
    optimizer = torch.optim.SGD(groups)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: at / 10)
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.0]
    copied = trial_copy(TrainStep(model, optimizer, compute_loss), schedule=lambda at: 0.5)
    copied(*data)
    assert copied.schedule.ratios == pytest.approx((0.1, 1.0))


def test_a_loss_that_is_not_finite_ends_the_search(data):
    optimizer = lambda groups: torch.optim.SGD(groups, lr=0.1)  # noqa: E731
    model = nn.Linear(8, 4)

    def explode(model, x, y):
        return (model(x) - y[:, None]).pow(4).mean()

    trainer = Trainer(model, explode, optimizer=optimizer, device="cpu", monitor=False)
    result = trainer.find_lr(data, 32, max_lr=1e6, stop_factor=None)
    assert re.match("The (loss was|gradients were) not finite at lr=", result.stopped)
    assert len(result.losses) < 100
    assert result.suggestion is not None
    assert torch.isfinite(model.weight).all()


def test_a_diverging_loss_ends_the_search(data):
    result = make(optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1)).find_lr(data, 32, max_lr=1e4)
    assert result.stopped.startswith("The loss diverged at lr=")


def test_accumulation_counts_updates(data):
    result = make(accumulate=3).find_lr(data, 32, num_steps=12)
    assert len(result.losses) == 12


def test_without_a_falling_loss_there_is_no_suggestion():
    result = FindLrResult.of([10.0**at for at in range(-9, 1)], [1.0] * 10)
    assert result.suggestion is None
    assert "the loss did not fall" in str(result)
    assert FindLrResult.of([1e-3] * 3, [1.0, float("nan"), float("nan")]).suggestion is None


def noisy_losses(fall, noise, seed):
    source = torch.Generator().manual_seed(seed)
    at = torch.linspace(-7.0, 0.0, 100)
    losses = 10 - fall * torch.sigmoid(4 * (at + 2.5)) + noise * torch.randn(100, generator=source)
    return [10.0 ** float(one) for one in at], losses.tolist()


@pytest.mark.parametrize("seed", range(8))
def test_noisy_losses_suggest_a_rate_at_which_the_loss_has_moved(seed):
    result = FindLrResult.of(*noisy_losses(6.0, 2.0, seed))
    assert 3e-4 < result.suggestion < 0.1


@pytest.mark.parametrize("seed", range(8))
def test_losses_that_are_only_noise_suggest_nothing(seed):
    assert FindLrResult.of(*noisy_losses(0.0, 2.0, seed)).suggestion is None


def test_a_fall_that_may_be_noise_is_reported_with_what_to_do():
    result = FindLrResult.of(*noisy_losses(1.0, 3.0, 0))
    assert result.suggestion is None
    assert "more between batches than it falls. Use larger batches, accumulate=, or more num_steps" in str(
        result
    )


def test_a_step_function_that_uses_a_global_model_is_named(data):
    model = nn.Linear(8, 4)
    trainer = Trainer(
        model,
        lambda _, x, y: cross_entropy(model(x), y),
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
        device="cpu",
        monitor=False,
    )
    with pytest.raises(TrainError, match=r"trains a copy of the model.*such as a global one"):
        trainer.find_lr(data, 32)


def test_smoothing_does_not_shift_a_falling_loss():
    falling = [float(100 - at) for at in range(100)]
    assert smooth(falling) == pytest.approx(falling)


def test_the_picture_has_the_suggestion_and_is_written(tmp_path, data):
    result = make().find_lr(data, 32, max_lr=10.0, num_steps=60)
    text = result.svg(tmp_path / "lr.svg")
    assert (tmp_path / "lr.svg").read_text() == text
    assert f"suggestion {result.suggestion:.2g}" in text
    with pytest.raises(TrainError, match=r"does not end in \.svg"):
        result.svg(tmp_path / "lr.png")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"min_lr": 1.0, "max_lr": 0.1}, "0 < min_lr < max_lr"),
        ({"num_steps": 3}, "at least 10"),
        ({"stop_factor": 1.0}, "above 1"),
        ({"steps": 3}, "find_lr has no argument 'steps'"),
    ],
)
def test_wrong_arguments_are_explained(data, wrong, message):
    with pytest.raises(TrainError, match=message):
        make().find_lr(data, 32, **wrong)


def test_an_iterator_is_not_used_up(data):
    with pytest.raises(TrainError, match="the data is an iterator"):
        make().find_lr(iter([data]))


def test_the_name_in_other_frameworks_is_explained():
    with pytest.raises(AttributeError, match=r"trainer.find_lr\(data"):
        make().lr_find  # noqa: B018


@pytest.mark.parametrize("where", ["data", "weights"])
def test_a_first_loss_that_is_not_finite_is_an_error_that_says_where_to_look(data, where):
    trainer, (x, y) = make(), data
    if where == "weights":
        with torch.no_grad():
            trainer.model[0].weight.fill_(float("nan"))
    else:
        x = x * float("nan")
    with pytest.raises(TrainError, match=r"the first loss is nan.*before any update") as raised:
        trainer.find_lr((x, y), 32)
    assert "min_lr" not in str(raised.value)


def test_gradients_that_are_not_finite_at_the_first_update_are_an_error(data):
    def step(model, x, y):
        return cross_entropy(model(x), y) + (model[0].weight * 0).sqrt().sum()

    trainer = Trainer(
        nn.Sequential(nn.Linear(8, 4)),
        step,
        device="cpu",
        monitor=False,
        tier="eager",
        optimizer=lambda groups: torch.optim.SGD(groups, lr=1e-3),
    )
    with pytest.raises(TrainError, match="gradients of the first loss are not finite"):
        trainer.find_lr(data, 32)


def test_a_result_of_losses_that_are_not_finite_has_no_suggestion():
    result = FindLrResult.of([1e-3, 1e-2], [float("nan"), float("inf")])
    assert result.suggestion is None
    assert result.svg()
