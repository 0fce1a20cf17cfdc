"""What the journal and the page have of each step besides the loss."""

import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from flodl import Trainer
from flodl.monitor import Monitor, read
from flodl.optim import CosineScheduler


def compute_loss(model, x, y):
    found = model(x)
    return mse_loss(found, y), {"error": (found - y).abs().mean()}


def steps_of(tmp_path, *, step_rate=None, batch_size=8, **settings):
    """Train eight steps, and return the metrics of each step by name."""
    torch.manual_seed(0)
    with Monitor(2, tmp_path, step_rate=step_rate, console=False, resources=False) as monitor:
        trainer = Trainer(
            nn.Linear(4, 1),
            compute_loss,
            optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
            device="cpu",
            monitor=monitor,
            **settings,
        )
        trainer.fit((torch.randn(32, 4), torch.randn(32, 1)), epochs=2, batch_size=batch_size)
    found = {}
    for entry in read(tmp_path):
        if entry.event.kind == "metrics":
            for name, value in entry.event.data["metrics"].items():
                found.setdefault(name, []).append(value)
    return found


def alerts(folder):
    events = [entry.event for entry in read(folder)]
    return [event.data["message"] for event in events if event.kind == "alert"]


def test_each_step_has_its_learning_rate_and_named_values(tmp_path):
    schedule = CosineScheduler(0.1, min=0.0, total=8)
    found = steps_of(tmp_path, schedule=schedule)
    assert sorted(found) == ["error", "loss", "lr"]
    assert {len(values) for values in found.values()} == {8}
    assert found["lr"] == pytest.approx([schedule.lr(step) for step in range(1, 9)])


def test_with_clipping_each_step_has_the_norm_from_before(tmp_path):
    found = steps_of(tmp_path / "clipped", clip_norm=0.01)
    assert all(norm > 0.01 for norm in found["grad_norm"])
    measured = steps_of(tmp_path / "measured", clip_norm=math.inf)
    assert len(measured["grad_norm"]) == 8
    assert measured["loss"] == steps_of(tmp_path / "plain")["loss"], "an infinite limit clips nothing"


def test_with_accumulation_each_update_has_its_norm(tmp_path):
    found = steps_of(tmp_path, clip_norm=1.0, accumulate=3)
    assert (len(found["loss"]), len(found["grad_norm"])) == (4, 4)
    assert all(math.isfinite(norm) for norm in found["grad_norm"])
    assert alerts(tmp_path) == []


@pytest.mark.parametrize("log_every", [1, 2])
def test_with_accumulation_a_step_is_an_update_with_the_mean_of_its_window(tmp_path, log_every):
    """Seven batches, of which the last has two samples: windows of 3, 3 and 1 batches in each epoch."""
    x, y = torch.randn(32, 4), torch.randn(32, 1)
    called, updates, losses = [], [], []

    def step_fn(model, x, y):
        loss, named = compute_loss(model, x, y)
        losses.append((loss.item(), len(x)))
        return loss, named

    def on_step_end(step):
        called.append(step)
        updates.append(sum(loss * n for loss, n in losses) / sum(n for _, n in losses))
        losses.clear()

    with Monitor(2, tmp_path, step_rate=None, console=False, resources=False) as monitor:
        trainer = Trainer(
            nn.Linear(4, 1),
            step_fn,
            optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
            device="cpu",
            dry_pass=False,
            accumulate=3,
            monitor=monitor,
            log_every=log_every,
            hooks=[on_step_end],
        )
        result = trainer.fit((x, y), epochs=2, batch_size=5)
    events = [entry.event.data for entry in read(tmp_path) if entry.event.kind == "metrics"]
    recorded = {event["step"]: event["metrics"]["loss"] for event in events if "loss" in event["metrics"]}
    expected = dict(zip(called, updates))
    assert called == [1, 2, 3, 4, 5, 6]
    assert result.steps == 6
    if log_every == 1:
        assert recorded == pytest.approx(expected)
    else:
        assert {2, 5} <= set(recorded)
        assert all(loss == pytest.approx(expected[step]) for step, loss in recorded.items())


def test_with_accumulation_there_is_no_norm_before_the_first_update_of_a_resumed_run(tmp_path):
    x, y = torch.randn(32, 4), torch.randn(32, 1)
    for epochs in (1, 2):
        trainer = Trainer(
            nn.Linear(4, 1),
            compute_loss,
            optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
            device="cpu",
            clip_norm=1.0,
            accumulate=2,
            checkpoint_dir=tmp_path,
        )
        trainer.fit((x, y), epochs=epochs, batch_size=8)
    assert alerts(tmp_path) == ["resumed after 2 updates, 1 epoch done"]


def test_a_batch_that_is_dropped_has_no_point_and_no_alert(tmp_path):
    found = steps_of(tmp_path, batch_size=12, tail="drop")
    assert len(found["loss"]) == 4
    assert all(math.isfinite(loss) for loss in found["loss"])
    assert alerts(tmp_path) == []


def test_a_dropped_batch_is_not_the_last_one_of_its_window_for_hooks(tmp_path):
    losses = []

    def on_step_end(loss):
        losses.append(float(loss))

    steps_of(tmp_path, batch_size=9, tail="drop", accumulate=2, hooks=[on_step_end])
    assert len(losses) == 4
    assert all(math.isfinite(loss) for loss in losses)


def test_a_rate_that_is_changed_by_hand_is_shown(tmp_path):
    def on_epoch_end(trainer):
        trainer.scale_lr(0.5)

    assert steps_of(tmp_path, hooks=[on_epoch_end])["lr"] == pytest.approx([0.1] * 4 + [0.05] * 4)


def test_values_are_taken_only_where_the_loss_is_kept(tmp_path):
    found = steps_of(tmp_path, step_rate=0.001)
    assert len(found["lr"]) == 1
    assert len(found["loss"]) < 8


def test_a_step_without_named_values_that_nobody_logs_has_none(tmp_path):
    assert steps_of(tmp_path, log_every=None) == {}


class StopAt:
    """Ends the run after an update, in one of several ways."""

    def __init__(self, step, how):
        self.step, self.how = step, how

    def on_step_end(self, trainer, step):
        if step == self.step:
            self.how(trainer)


def exit_program(trainer):
    raise SystemExit(75)


@pytest.mark.parametrize("how", [lambda trainer: trainer.stop("enough"), exit_program])
@pytest.mark.parametrize("step_rate", [1e-6, None])
def test_a_run_that_stops_in_its_first_epoch_ends_with_the_values_of_its_last_step(
    tmp_path, capsys, how, step_rate
):
    torch.manual_seed(0)
    seen = []

    def noting(model, x, y):
        loss, values = compute_loss(model, x, y)
        seen.append((loss.item(), values["error"].item()))
        return loss, values

    ends = pytest.raises(SystemExit) if how is exit_program else nullcontext()
    with ends, Monitor(1, tmp_path, step_rate=step_rate, resources=False) as monitor:
        trainer = Trainer(
            nn.Linear(4, 1),
            noting,
            optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
            device="cpu",
            monitor=monitor,
            hooks=[StopAt(3, how)],
            dry_pass=False,
        )
        trainer.fit((torch.randn(32, 4), torch.randn(32, 1)), epochs=1, batch_size=8)
    last = capsys.readouterr().out.splitlines()[-1]
    loss, error = seen[-1]
    assert len(seen) == 3
    assert f"  | loss: {loss:.4f}  lr: 0.1000  error: {error:.4f}" in last
    points = [
        (entry.event.data["step"], *entry.event.data["metrics"].items())
        for entry in read(tmp_path)
        if entry.event.kind == "metrics"
    ]
    assert len(set(points)) == len(points)
