"""What the journal and the page have of each step besides the loss."""

import math

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


def steps_of(tmp_path, *, step_rate=None, **settings):
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
        trainer.fit((torch.randn(32, 4), torch.randn(32, 1)), epochs=2, batch_size=8)
    found = {}
    for entry in read(tmp_path):
        if entry.event.kind == "metrics":
            for name, value in entry.event.data["metrics"].items():
                found.setdefault(name, []).append(value)
    return found


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
