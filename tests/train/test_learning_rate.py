"""The trainer passes the loss to a schedule that follows a metric."""

import pytest
import torch
from torch import nn

from flodl.core import FlodlError, TrainError
from flodl.core.errors import ScheduleError
from flodl.monitor import read
from flodl.optim import CosineScheduler, PlateauScheduler, StepDecay, WarmupScheduler
from flodl.train import EarlyStopping


def flat(model, x, y):
    return 0.0 * model(x).mean() + 1.0


def flat_in_evaluation(model, x, y):
    return nn.functional.mse_loss(model(x), y) if model.training else 0.0 * model(x).mean() + 1.0


def falling_in_evaluation():
    values = iter(range(9, 0, -1))
    return lambda model, x, y: 0.0 * model(x).mean() + (1.0 if model.training else float(next(values)))


def rates(trainer):
    return [row["lr"] for row in trainer.history]


@pytest.mark.parametrize("warm", [False, True])
def test_a_plateau_schedule_gets_the_loss_of_every_epoch(make, data, warm):
    schedule = PlateauScheduler(0.1, patience=2, factor=0.5, min=0.03)
    schedule = WarmupScheduler(schedule, target=0.1, warm=1) if warm else schedule
    trainer = make(step_fn=flat, schedule=schedule)
    trainer.fit(data, epochs=5, batch_size=20)
    # The rate of a row is that of the next update.
    assert rates(trainer) == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.03])


def test_the_evaluation_loss_takes_precedence_over_the_training_loss(make, data):
    schedule = PlateauScheduler(0.1, patience=1, factor=0.5)
    trainer = make(step_fn=flat_in_evaluation, schedule=schedule)
    trainer.fit(data, epochs=3, batch_size=20, eval_data=data)
    assert rates(trainer) == pytest.approx([0.1, 0.05, 0.025])
    improving = make(step_fn=falling_in_evaluation(), schedule=PlateauScheduler(0.1, patience=1, factor=0.5))
    improving.fit(data, epochs=3, batch_size=20, eval_data=data)
    assert rates(improving) == pytest.approx([0.1, 0.1, 0.1])


def test_a_plateau_continues_after_a_resume(make, data, tmp_path):
    def trained(folder, *stops):
        for until in stops:
            schedule = PlateauScheduler(0.1, patience=2, factor=0.5)
            trainer = make(step_fn=flat, schedule=schedule, checkpoint_dir=tmp_path / folder, monitor=None)
            trainer.fit(data, epochs=until, batch_size=8)
        reported = [entry.event.data for entry in read(tmp_path / folder) if entry.event.kind == "alert"]
        assert [alert["level"] for alert in reported] == ["info"] * (len(stops) - 1)  # nothing differs
        return rates(trainer), schedule.state_dict()

    assert trained("whole", 6) == trained("parts", 1, 2, 3, 5, 6)


def one_when_evaluated(model, x, y):
    """A loss of 1 in evaluation and of 5 in training."""
    return 0.0 * model(x).mean() + (5.0 if model.training else 1.0)


def test_a_plateau_does_not_compare_the_loss_with_the_best_evaluation_loss(make, data, capsys):
    trainer = make(step_fn=one_when_evaluated, schedule=PlateauScheduler(0.1, patience=2, factor=0.5))
    trainer.fit(data, epochs=2, batch_size=20, eval_data=data)
    trainer.fit(data, epochs=6, batch_size=20)
    # The first loss is a new best; the second and third one are not better.
    assert rates(trainer) == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.05, 0.05])
    reported = capsys.readouterr().err
    assert reported.count("the schedule now follows loss, and followed eval_loss before.") == 1


def test_a_plateau_keeps_its_rate_when_a_resumed_run_has_no_evaluation(make, data, tmp_path, capsys):
    def fit(epochs, **settings):
        schedule = PlateauScheduler(0.1, patience=1, factor=0.5)
        trainer = make(step_fn=one_when_evaluated, schedule=schedule, checkpoint_dir=tmp_path)
        trainer.fit(data, epochs=epochs, batch_size=20, **settings)
        return rates(trainer)

    assert fit(2, eval_data=data) == pytest.approx([0.1, 0.05])
    assert fit(4) == pytest.approx([0.1, 0.05, 0.05, 0.025])
    reported = capsys.readouterr().err
    assert "eval_data is now None" in reported
    assert "the schedule now follows loss" in reported


def test_a_plateau_follows_only_the_epochs_that_a_loop_evaluates(make, data, capsys):
    trainer = make(step_fn=one_when_evaluated, schedule=PlateauScheduler(0.1, patience=1, factor=0.5))
    for epoch in range(5):
        for batch in trainer.epoch(data, 20, eval_data=data if epoch % 2 else None):
            trainer.step(batch)
    # Epochs 0 and 1 are each the first of their metric; 3 is the second evaluation.
    assert rates(trainer) == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.05])
    reported = capsys.readouterr().err
    assert reported.count("the schedule now follows eval_loss, and followed loss before.") == 1
    assert reported.count("this epoch was not evaluated: the schedule leaves out such epochs") == 1


def test_a_plateau_that_waits_for_a_metric_to_rise_is_rejected(make):
    schedule = PlateauScheduler(0.1, patience=2, factor=0.5, mode="max")
    with pytest.raises(TrainError, match=r"waits for a metric to rise, .*ReduceOnPlateau"):
        make(schedule=schedule)


def test_the_rates_of_groups_keep_their_ratio_on_a_plateau(make, data):
    def optimizer(groups):
        first, *rest = groups[0]["params"]
        return torch.optim.SGD([{"params": rest, "lr": 0.1}, {"params": [first], "lr": 0.01}])

    trainer = make(step_fn=flat, optimizer=optimizer, schedule=PlateauScheduler(0.1, patience=1, factor=0.5))
    trainer.fit(data, epochs=2, batch_size=20)
    assert [group["lr"] for group in trainer.optimizer.param_groups] == pytest.approx([0.05, 0.005])


@pytest.mark.parametrize("warm", [False, True])
def test_a_plateau_used_by_another_run_starts_from_scratch(make, data, warm):
    schedule = PlateauScheduler(0.1, patience=1, factor=0.5)
    schedule = WarmupScheduler(schedule, target=0.1, warm=1) if warm else schedule
    first, second = make(step_fn=flat, schedule=schedule), make(step_fn=flat, schedule=schedule)
    for trainer in (first, second):
        trainer.fit(data, epochs=4, batch_size=20)
    assert rates(second) == rates(first) == pytest.approx([0.1, 0.05, 0.025, 0.0125])
    # A run with progress continues where it was.
    first.fit(data, epochs=5, batch_size=20)
    assert rates(first)[-1] == pytest.approx(0.00625)


def test_a_factor_that_is_not_a_number_is_an_error(make):
    with pytest.raises(TrainError, match=r"scale_lr\('0.5'\). Use a factor above 0, such as 0.5."):
        make().scale_lr("0.5")
    with pytest.raises(TrainError, match="least='0'"):
        make().scale_lr(0.5, least="0")


@pytest.mark.parametrize("schedule", [None, CosineScheduler(0.1, 0.0, 100)])
def test_a_row_has_the_highest_rate_of_all_groups(make, data, schedule):
    def optimizer(groups):
        first, *rest = groups[0]["params"]
        return torch.optim.SGD([{"params": [first], "lr": 0.001}, {"params": rest, "lr": 0.1}])

    trainer = make(optimizer=optimizer, schedule=schedule)
    trainer.fit(data, epochs=1, batch_size=8)
    expected = 0.1 if schedule is None else schedule.lr(trainer.updates)
    assert trainer.history[-1]["lr"] == pytest.approx(expected)


class WithoutRate(torch.optim.Optimizer):
    """An optimizer that chooses its steps itself; `settings` may have the rate None, as in Adafactor."""

    def __init__(self, groups, **settings):
        super().__init__(groups, settings)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad


class TestAnOptimizerWithoutARate:
    @pytest.fixture(params=[{}, {"lr": None}], ids=["no lr", "lr=None"])
    def optimizer(self, request):
        return lambda groups: WithoutRate(groups, **request.param)

    @pytest.mark.parametrize("monitor", [False, None])
    def test_it_trains_and_reports_no_rate(self, make, data, optimizer, monitor, tmp_path):
        trainer = make(optimizer=optimizer, monitor=monitor, checkpoint_dir=tmp_path / "run")
        result = trainer.fit(data, epochs=2, batch_size=8, eval_data=data)
        assert result.history[-1]["loss"] < result.history[0]["loss"]
        assert not any("lr" in row for row in result.history)
        again = make(optimizer=optimizer, checkpoint_dir=tmp_path / "run")
        assert again.fit(data, epochs=3, batch_size=8, eval_data=data).steps == 9

    def test_what_changes_the_rate_is_refused(self, make, data, optimizer):
        trainer = make(optimizer=optimizer)
        with pytest.raises(TrainError, match="the groups of WithoutRate have no learning rate 'lr' to scale"):
            trainer.scale_lr(0.5)
        with pytest.raises(FlodlError, match=r"the groups of WithoutRate have no learning rate 'lr'\. Use"):
            trainer.find_lr(data, 8)
        with pytest.raises(ScheduleError, match="WithoutRate has no parameter groups with an 'lr' to set"):
            make(optimizer=optimizer, schedule=StepDecay(0.1, 2, 0.5))
        with pytest.raises(TrainError, match="watches 'lr', which this run does not have"):
            make(optimizer=optimizer, hooks=[EarlyStopping("lr")]).fit(data, epochs=1, batch_size=8)
