"""Hooks, schedules and evaluation in the calling process, and what ranks learn about them."""

import pytest
import torch

from flodl.optim import CosineScheduler, PlateauScheduler
from flodl.train import EarlyStopping, ReduceOnPlateau

pytestmark = pytest.mark.slow


class Calls:
    def __init__(self):
        self.found = []

    def on_start(self):
        self.found.append("start")

    def on_epoch_start(self, epoch):
        self.found.append(f"epoch {epoch}")

    def on_evaluate_end(self, metrics):
        self.found.append("evaluated")

    def on_epoch_end(self, epoch, metrics, trainer):
        self.found.append(f"end {epoch}")
        metrics["own"] = float(trainer.updates)

    def on_end(self, result):
        self.found.append("done")


def test_hooks_are_called_as_on_one_device(make, data):
    found = []
    for options in ({"device": "cpu"}, {}):
        calls = Calls()
        result = make(hooks=[calls], **options).fit(data, epochs=2, batch_size=8, eval_data=data)
        found.append(calls.found)
        assert [row["own"] for row in result.history] == [30.0, 60.0]
    assert found[0] == found[1]


def test_the_schedule_follows_committed_updates(make, data):
    schedule = CosineScheduler(0.05, 0.001, 90)
    settings = {"schedule": schedule}
    alone = make(device="cpu", **settings).fit(data, epochs=3, batch_size=8)
    result = make(devices=["cpu"] * 3, **settings).fit(data, epochs=3, batch_size=8)
    assert [row["lr"] for row in result.history] == [row["lr"] for row in alone.history]


def test_ranks_train_with_the_rate_of_their_position(make, supervision):
    """A step adds −lr to a weight, so the weight is minus the mean of the sums of rates of the ranks."""
    x = torch.zeros(40, 1)
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    trainer = make(
        model,
        lambda model, x: model.weight.sum() + 0.0 * x.sum(),
        optimizer=lambda groups: torch.optim.SGD(groups, lr=1.0),
        schedule=lambda step: 1.0 if step < 10 else 0.0,
    )
    trainer.fit(x, epochs=1, batch_size=1)
    committed = supervision.kinds("commit")
    # Rates are 1 for the first 10 updates of both ranks together: 5 of each.
    assert -model.weight.item() == pytest.approx(5.0, abs=1.0)
    assert sum(record["batches"] for record in committed) == 40


def test_early_stopping_ends_the_run(make, data):
    result = make(hooks=[EarlyStopping("eval_loss", patience=1, tol=1e9)]).fit(
        data, epochs=20, batch_size=8, eval_data=data
    )
    assert result.status == "stopped"
    assert len(result.history) == 2


@pytest.mark.parametrize("how", ["hook", "schedule"])
def test_a_rate_that_is_reduced_between_epochs_reaches_the_ranks(make, how):
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    settings = {"hooks": [ReduceOnPlateau("loss", factor=0.1, patience=1)]}
    if how == "schedule":
        settings = {"schedule": PlateauScheduler(1.0, factor=0.1, patience=1)}
    weights = []

    class Weights:
        def on_epoch_end(self, trainer):
            weights.append(trainer.model.weight.item())

    settings.setdefault("hooks", []).append(Weights())
    result = make(
        model,
        # The gradient is 1 and the loss stays the same.
        lambda model, x: model.weight.sum() - model.weight.detach().sum() + 0.0 * x.sum() + 1.0,
        optimizer=lambda groups: torch.optim.SGD(groups, lr=1.0),
        **settings,
    ).fit(torch.zeros(16, 1), epochs=4, batch_size=1)
    rates = [row["lr"] for row in result.history]
    assert rates[-1] < 1.0
    moved = [before - after for before, after in zip([0.0, *weights], weights)]
    # 16 updates in an epoch, with the rate at the end of the epoch before. Their mean is 8 if ranks train 8
    # each, and up to 16 if one of them trains more.
    shares = [step / rate for step, rate in zip(moved, [1.0, *rates[:-1]])]
    assert all(7.9 < share < 16.1 for share in shares), shares


def test_frozen_parameters_stay_frozen_on_ranks(make, data):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))

    class Thaw:
        def on_start(self, trainer):
            trainer.model[0].requires_grad_(False)

        def on_epoch_start(self, epoch, trainer):
            if epoch == 1:
                trainer.model[0].requires_grad_(True)

        def on_epoch_end(self, epoch, trainer):
            found.append(trainer.model[0].weight.detach().clone())

    found, before = [], model[0].weight.detach().clone()
    make(model, hooks=[Thaw()]).fit(data, epochs=2, batch_size=8)
    assert torch.equal(found[0], before)
    assert not torch.equal(found[1], before)
