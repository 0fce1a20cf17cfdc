"""Ranks that are killed, fail or are slow: the run continues, and each sample is trained once."""

import math
import os
import time

import pytest
import torch

from flodl.core import NotFiniteError, TrainError
from flodl.distributed.ranks import Fault
from flodl.monitor import Monitor

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("point", ["batch", "reduce", "save"])
def test_a_rank_that_is_killed_is_left_out_and_its_samples_are_trained_by_others(
    make, data, supervision, point
):
    window = {"batch": 2, "reduce": 2, "save": 3}[point]
    rank = 0 if point == "save" else 1
    supervision.use(faults=[Fault(rank, point, window)])
    trainer = make(devices=["cpu"] * 3)
    result = trainer.fit(data, epochs=3, batch_size=4, eval_data=data)
    assert result.status == "finished"
    assert result.metrics["eval_loss"] < 0.1
    assert result.steps == 180
    supervision.check_coverage(240, range(3))
    if supervision.kinds("lost"):
        assert [bool(each.lost) for each in result.ranks.ranks] == [each == rank for each in range(3)]


def test_a_lost_rank_is_reported_once(make, data, supervision):
    class Alerts:
        def __init__(self):
            self.found = []

        def write(self, event):
            self.found.append(event)

        def close(self): ...

    supervision.use(faults=[Fault(1, "batch", 1)])
    alerts = Alerts()
    monitor = Monitor(2, sinks=[alerts])
    make(monitor=monitor).fit(data, epochs=2, batch_size=4)
    monitor.finish("finished")
    lost = [event for event in alerts.found if event.kind == "alert" and "rank 1" in event.data["message"]]
    assert len(lost) == 1
    assert "The run continues with 1 rank" in lost[0].data["message"]
    supervision.check_coverage(240, range(2))


def test_a_slow_rank_trains_less(make, data, supervision):
    def loss_of(model, x, y):
        # The dry pass runs in the process of the test, which is not a rank.
        time.sleep(0.02 if os.environ.get("FLODL_RANK") == "1" else 0.0)
        return (model(x) - y).square().mean()

    result = make(None, loss_of).fit(data, epochs=3, batch_size=2)
    supervision.check_coverage(240, range(3))
    fast, slow = result.ranks.ranks
    assert fast.updates > slow.updates > 0


def test_all_ranks_that_fail_end_the_run_with_the_first_failure(make, data, supervision, capsys):
    def loss_of(model, x, y):
        if (x > 1e5).any():
            raise ValueError("this sample is broken")
        return (model(x) - y).square().mean()

    x, y = data
    x[200:220] = 1e6
    model = torch.nn.Linear(4, 1)
    trainer = make(model, loss_of)
    first = trainer.loader((x, y), 8).sample_indices(0, 8)
    x[first] = 1.0
    with pytest.raises(TrainError, match="training on 2 devices ended") as caught:
        trainer.fit((x, y), epochs=1, batch_size=8)
    message = str(caught.value)
    first_line, rest = message.split("\n", 1)
    assert "ended: ValueError: this sample is broken (" in first_line
    assert f"{__file__}, line " in first_line
    assert "in loss_of), on rank" in first_line
    assert rest.startswith("rank ")
    shown = message + capsys.readouterr().err
    assert shown.count("Traceback (most recent call last)") == 1
    assert "flodl/engine" not in shown
    assert "1 ranks" not in shown


def test_an_flodl_error_in_a_rank_is_shown_without_frames_of_flodl(make, data, capsys):
    def loss_of(model, x, y):
        return "no loss" if (x > 1e5).any() else (model(x) - y).square().mean()

    x, y = data
    trainer = make(torch.nn.Linear(4, 1), loss_of)
    first = trainer.loader((x, y), 8).sample_indices(0, 8)
    x[200:220] = 1e6
    x[first] = 1.0
    with pytest.raises(TrainError, match="the step function returned a str"):
        trainer.fit((x, y), epochs=1, batch_size=8)
    shown = capsys.readouterr().err
    assert " failed at step " in shown
    assert "training: StepError: the step function returned a str." in shown
    assert "Traceback" not in shown
    assert "\\n" not in shown


@pytest.mark.parametrize("policy", ["sync", "cadence"])
@pytest.mark.parametrize("part", ["loss", "gradients"])
def test_the_rank_that_was_not_finite_is_named(make, data, policy, part):
    def loss_of(model, x, y):
        loss = (model(x) - y).square().mean()
        if os.environ.get("FLODL_RANK") != "1":
            return loss
        # The gradient of the square root at 0 is infinite.
        return loss * torch.nan if part == "loss" else loss + (model.weight * 0.0).abs().sqrt().sum()

    with pytest.raises(NotFiniteError, match=r"on rank 1\. Those"):
        make(torch.nn.Linear(4, 1), loss_of, dry_pass=False, policy=policy).fit(data, epochs=1, batch_size=8)


def test_updates_that_are_not_finite_end_the_run_or_are_counted(make, data):
    x, y = data
    x[17, 0] = torch.inf
    with pytest.raises(NotFiniteError, match=r"not finite in 1 of the \d+ updates .*, on rank [01]\. Those"):
        make(dry_pass=False).fit((x, y), epochs=1, batch_size=4)
    with pytest.raises(NotFiniteError, match=r"on rank [01]\. Those"):
        make(dry_pass=False, policy="sync").fit((x, y), epochs=1, batch_size=4)
    trainer = make(nan="skip", dry_pass=False)
    result = trainer.fit((x, y), epochs=2, batch_size=4)
    assert [row["skipped_updates"] for row in result.history] == [1, 1]
    assert torch.isfinite(trainer.model.weight).all()
    alone = make(device="cpu", nan="skip").fit((x, y), epochs=2, batch_size=4)
    assert [list(row) for row in result.history] == [list(row) for row in alone.history]


def test_stop_ends_the_run_within_an_epoch_and_keeps_what_is_committed(make, data, supervision):
    trainer = make()
    supervision.use(
        faults=[Fault(rank, "batch", 1, action="sleep", ms=5.0) for rank in (0, 1)],
        on_record=lambda record: trainer.stop("enough") if record["kind"] == "commit" else time.sleep(0),
    )
    result = trainer.fit(data, epochs=50, batch_size=2)
    assert (result.status, result.reason) == ("stopped", "enough")
    committed = sum(record["batches"] for record in supervision.kinds("commit"))
    assert result.steps == trainer.updates == committed


@pytest.mark.parametrize("policy", ["sync", "cadence"])
def test_a_value_that_is_nan_on_one_rank_is_nan_in_the_mean_and_the_warning_names_the_rank(
    make, data, supervision, capsys, policy
):
    def step(model, x, y):
        loss = (model(x) - y).square().mean()
        return loss, {"gap": float("nan") if os.environ.get("FLODL_RANK") == "1" else 1.0, "one": 1.0}

    trainer = make(None, step, policy=policy)
    trainer.fit(data, epochs=2, batch_size=4)
    for row in trainer.history:
        assert math.isfinite(row["loss"])
        assert math.isnan(row["gap"])
        assert row["one"] == 1.0
    told = capsys.readouterr()
    told = told.out + told.err
    assert told.count("the mean of 'gap' is NaN in epoch 1, because of rank 1, and the training loss is") == 1
    assert "nan.rank" not in told


@pytest.mark.parametrize("point", ["batch", "reduce"])
def test_an_update_that_a_lost_rank_interrupted_has_no_value(make, data, supervision, point):
    losses = []

    class Steps(Monitor):
        def log_step(self, step, metrics, **options):
            losses.append(float(metrics["loss"]))
            super().log_step(step, metrics, **options)

    supervision.use(faults=[Fault(1, point, 5)])
    monitor = Steps(2, sinks=[])
    make(monitor=monitor, policy="sync", log_every=1).fit(data, epochs=2, batch_size=4)
    monitor.finish("finished")
    assert losses
    assert all(map(math.isfinite, losses))
