"""What a run reports when it begins."""

import pytest
import torch

from flodl.checkpoint import best
from flodl.optim import (
    CosineScheduler,
    CyclicLR,
    ExponentialLR,
    OneCycleLR,
    WarmupScheduler,
)
from flodl.train import EarlyStopping

from ..scheduler_hooks import Saved


def test_a_warm_up_that_is_longer_than_the_run_is_reported(make, data, capsys):
    def told(warm, **fit):
        schedule = WarmupScheduler(ExponentialLR(0.1, 1.0), target=0.1, warm=warm)
        make(schedule=schedule).fit(data, epochs=2, batch_size=4, **fit)
        return capsys.readouterr().err

    text = "the warm-up of the schedule has 11 updates, and the run has only 10"
    assert told(11).count(text) == 1
    assert told(10) == ""
    assert told(11, limit=1) == ""


def test_a_run_warns_once_about_a_schedule_in_epochs(make, data, capsys):
    make(schedule=CosineScheduler(0.1, 0.0, 4)).fit(data, epochs=4, batch_size=2)
    assert capsys.readouterr().err.count("the schedule counts updates, and an epoch has 10") == 1
    make(schedule=CosineScheduler(0.1, 0.0, 40)).fit(data, epochs=4, batch_size=2)
    assert capsys.readouterr().err == ""


def test_a_run_warns_about_a_learning_rate_of_zero(make, data, capsys):
    make(optimizer=lambda groups: torch.optim.SGD(groups, lr=0)).fit(data, epochs=2, batch_size=8)
    assert (
        capsys.readouterr().err == "every learning rate of the optimizer is 0, so nothing will be learned.\n"
    )


def warm_up(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 4))


def cycle(optimizer):
    return torch.optim.lr_scheduler.CyclicLR(optimizer, 0.0, 0.1, step_size_up=4, cycle_momentum=False)


@pytest.mark.parametrize("scheduled", [warm_up, cycle])
@pytest.mark.parametrize("is_function", [False, True])
def test_a_warm_up_from_zero_of_a_torch_scheduler_is_not_reported(
    make, data, capsys, tmp_path, scheduled, is_function
):
    def trained(epochs, folder):
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = scheduled(optimizer)
        assert optimizer.param_groups[0]["lr"] == 0
        before = model.weight.clone()

        def on_step_end():
            scheduler.step()

        hook = on_step_end if is_function else Saved(scheduler)
        settings = {} if is_function else {"checkpoint_dir": folder}
        make(model, optimizer=optimizer, hooks=[hook], **settings).fit(data, epochs=epochs, batch_size=4)
        assert not torch.equal(model.weight, before)

    for epochs in (1, 2):
        trained(epochs, tmp_path)
        assert "learning rate" not in capsys.readouterr().err


def test_a_rate_of_zero_that_a_hook_or_the_step_function_sets_is_not_reported(make, data, capsys):
    class Ramp:
        def on_step_end(self, trainer, step):
            self.set_rate(trainer.optimizer, step / 100)

        def set_rate(self, optimizer, rate):
            for group in optimizer.param_groups:
                group["lr"] = rate

    def on_step_end(trainer, step):
        trainer.optimizer.param_groups[0]["lr"] = step / 100

    for hook in (Ramp(), on_step_end):
        make(optimizer=lambda groups: torch.optim.SGD(groups, lr=0), hooks=[hook]).fit(
            data, epochs=2, batch_size=8
        )
    assert capsys.readouterr().err == ""


def test_a_scheduler_of_an_optimizer_with_a_rate_of_zero_changes_nothing(make, data, capsys):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0)
    hook = Saved(warm_up(optimizer))
    make(model, optimizer=optimizer, hooks=[hook]).fit(data, epochs=2, batch_size=8)
    assert "every learning rate of the optimizer is 0" in capsys.readouterr().err


def test_choosing_weights_by_an_evaluation_on_the_training_data_is_reported(make, capsys, tmp_path):
    data = torch.ones(8, 3), torch.ones(8, 1)
    other = data[0].clone(), data[1]
    message = "the evaluation data is the training data"
    make(hooks=[EarlyStopping("eval_loss")]).fit(data, epochs=1, batch_size=4, eval_data=tuple(data))
    assert f"EarlyStopping watches 'eval_loss', and {message}" in capsys.readouterr().err
    kept = {"keep": best("eval_loss", mode="min")}
    make(checkpoint_dir=tmp_path / "a", **kept).fit(data, epochs=1, batch_size=4, eval_data=data)
    assert capsys.readouterr().err.count(message) == 1
    make(checkpoint_dir=tmp_path / "b", **kept).fit(data, epochs=1, batch_size=4, eval_data=other)
    make().fit(data, epochs=1, batch_size=4, eval_data=data)
    assert message not in capsys.readouterr().err


def test_a_run_that_continues_with_a_finished_schedule_says_so(make, data, tmp_path, capsys):
    schedule = CosineScheduler(0.1, 0.0, 6)
    trainer = make(schedule=schedule, checkpoint_dir=tmp_path)
    trainer.fit(data, epochs=2, batch_size=8)
    assert "the schedule is over" not in capsys.readouterr().err
    make(schedule=schedule, checkpoint_dir=tmp_path).fit(data, epochs=3, batch_size=8)
    assert "the schedule is over: this run continues after 6 updates" in capsys.readouterr().err


def test_a_second_fit_with_a_finished_schedule_says_so(make, data, capsys):
    trainer = make(schedule=CosineScheduler(0.1, 0.0, 6))
    trainer.fit(data, epochs=2, batch_size=8)
    trainer.fit(data, epochs=4, batch_size=8)
    assert "the schedule is over: this run continues after 6 updates" in capsys.readouterr().err


def test_a_schedule_that_ends_with_the_run_or_above_zero_is_not_reported_later(make, data, capsys):
    for schedule in (CosineScheduler(0.1, 0.0, 12), CosineScheduler(0.1, 0.01, 6)):
        trainer = make(schedule=schedule)
        trainer.fit(data, epochs=2, batch_size=8)
        trainer.fit(data, epochs=4, batch_size=8)
    assert "the schedule is over" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "schedule",
    [
        CosineScheduler(0.1, 0.0, 30),
        OneCycleLR(0.1, 30),
        WarmupScheduler(CosineScheduler(0.1, 0.0, 20), 0.1, 10),
        WarmupScheduler(CosineScheduler(0.1, 0.0, 30), 0.1, 4),
    ],
    ids=str,
)
def test_a_schedule_that_counts_batches_of_a_run_that_accumulates_is_reported(make, data, capsys, schedule):
    make(schedule=schedule, accumulate=5).fit(data, epochs=3, batch_size=2)
    told = capsys.readouterr().err
    assert "batches, but with accumulate=5 only 6 updates" in told
    assert "needs 2 for each epoch, -(-len(loader) // 5)" in told


@pytest.mark.parametrize(("total", "accumulate"), [(6, 5), (60, 5), (15, 2), (30, 1), (12, 5)])
def test_other_lengths_are_not_taken_for_a_number_of_batches(make, data, capsys, total, accumulate):
    schedule = CosineScheduler(0.1, 0.0, total)
    make(schedule=schedule, accumulate=accumulate).fit(data, epochs=3, batch_size=2)
    assert "batches" not in capsys.readouterr().err


@pytest.mark.parametrize("length", [20, 50, 90])
def test_a_rate_of_zero_in_whole_epochs_at_the_end_is_reported_once(make, data, capsys, length):
    make(schedule=CosineScheduler(0.1, 0.0, length)).fit(data, epochs=10, batch_size=2)
    told = capsys.readouterr().err
    assert told.startswith(f"the learning rate is 0 from update {length} on, and the run has 100, 10 in each")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    "schedule",
    [
        CosineScheduler(0.1, 0.0, 95),
        CosineScheduler(0.1, 1e-6, 60),
        ExponentialLR(0.1, 0.9),
        CyclicLR(1e-6, 0.1, 10),
    ],
    ids=str,
)
def test_a_rate_that_stays_above_zero_until_the_last_epoch_is_not_reported(make, data, capsys, schedule):
    make(schedule=schedule).fit(data, epochs=10, batch_size=2)
    assert "the learning rate is 0" not in capsys.readouterr().err


def test_a_resumed_run_whose_rate_becomes_zero_long_before_its_end_says_so(make, data, tmp_path, capsys):
    schedule = CosineScheduler(0.1, 0.0, 6)
    make(schedule=schedule, checkpoint_dir=tmp_path).fit(data, epochs=1, batch_size=8)
    capsys.readouterr()
    make(schedule=schedule, checkpoint_dir=tmp_path).fit(data, epochs=4, batch_size=8)
    assert "the learning rate is 0 from update 6 on, and the run has 12" in capsys.readouterr().err


@pytest.mark.parametrize(("decay", "reported"), [(0.001, True), (0.5, False), (0.999, False)])
def test_a_decay_that_is_probably_its_complement_is_reported(make, data, capsys, decay, reported):
    make(ema=decay, monitor=None).fit(data, epochs=1, batch_size=10)
    assert ("write ema=0.999" in "".join(capsys.readouterr())) is reported


@pytest.mark.parametrize("stop_at", [5, 8, 10, 15])
@pytest.mark.parametrize("total", [11, 15])
def test_a_resumed_run_counts_only_the_updates_that_are_left(make, data, tmp_path, capsys, stop_at, total):
    """A run of 15 updates: also one that was stopped at the last update of an epoch has no more than that."""

    class Stop:
        def on_step_end(self, trainer, step):
            if step == stop_at:
                trainer.stop()

    schedule = CosineScheduler(0.1, 0.0, total)
    settings = {"schedule": schedule, "checkpoint_dir": tmp_path}
    make(**settings, hooks=[Stop()]).fit(data, epochs=3, batch_size=4)
    trainer = make(**settings)
    trainer.fit(data, epochs=3, batch_size=4)
    assert trainer.updates == 15
    out = capsys.readouterr().err
    assert "the run has" not in out
    assert "is over" not in out


def test_a_run_that_only_lacks_its_last_evaluation_does_not_report_its_schedule(make, data, tmp_path, capsys):
    trained: list[int] = []

    def loss_of(model, x, y):
        if trained and not model.training:
            raise RuntimeError("interrupted")
        return torch.nn.functional.mse_loss(model(x), y)

    class Note:
        def on_step_end(self, step):
            trained.append(step)

    settings = {"schedule": CosineScheduler(0.1, 0.0, 5), "checkpoint_dir": tmp_path, "save_every_steps": 5}
    with pytest.raises(RuntimeError, match="interrupted"):
        make(step_fn=loss_of, hooks=[Note()], **settings).fit(data, epochs=1, batch_size=4, eval_data=data)
    trained.clear()
    make(step_fn=loss_of, hooks=[Note()], **settings).fit(data, epochs=1, batch_size=4, eval_data=data)
    assert "is over" not in capsys.readouterr().err


@pytest.mark.parametrize(("base", "times"), [(0.2, 1), (0.1, 0)])
def test_a_run_says_once_that_the_schedule_replaces_the_rate_of_the_optimizer(
    make, data, capsys, base, times
):
    trainer = make(schedule=CosineScheduler(base, 0.0, 20))
    for epochs in (1, 2):
        trainer.fit(data, epochs=epochs, batch_size=8)
    said = f"the schedule sets the learning rate, up to {base}; the lr=0.1 of the SGD is not used"
    captured = capsys.readouterr()
    assert (captured.out + captured.err).count(said) == times
    assert str(trainer.train_step.report()).count(said) == times


def test_a_resumed_run_says_that_a_changed_rate_is_not_used(make, data, tmp_path, capsys):
    for rate, times in ((0.1, 0), (0.5, 1)):
        trainer = make(
            optimizer=lambda groups, rate=rate: torch.optim.SGD(groups, lr=rate),
            schedule=CosineScheduler(0.1, 0.0, 20),
            checkpoint_dir=tmp_path,
        )
        trainer.fit(data, epochs=1 + times, batch_size=8)
        captured = capsys.readouterr()
        assert (captured.out + captured.err).count("the lr=0.5 of the SGD is not used") == times
