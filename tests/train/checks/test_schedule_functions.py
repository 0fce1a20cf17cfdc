"""Schedules that are functions: their rates are checked after each epoch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from flodl import Trainer


def told_by(schedule: Callable[[int], float], capsys: pytest.CaptureFixture[str], *, epochs: int = 3) -> str:
    """Train with a schedule, 4 updates in each epoch; return the warnings about it."""
    trainer = Trainer(
        nn.Linear(4, 2),
        lambda model, x, y: nn.functional.mse_loss(model(x), y),
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1),
        schedule=schedule,
        device="cpu",
    )
    trainer.fit((torch.randn(32, 4), torch.randn(32, 2)), epochs=epochs, batch_size=8)
    lines = "".join(capsys.readouterr()).splitlines()
    return "\n".join(line for line in lines if "learning rate fell" in line)


def test_a_function_that_was_meant_in_epochs_causes_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    told = told_by(lambda epoch: 0.1 * 0.05**epoch, capsys)
    assert told.count("fell") == 1
    assert "from 0.1 to 6.25e-07 within 4 updates, and 2 more epochs" in told
    assert "if it was meant in epochs" in told


def test_a_rate_of_zero_before_the_last_epoch_causes_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert "to 0 within 8 updates, and 1 more epoch will" in told_by(
        lambda step: max(0.0, 0.1 - step / 70), capsys
    )


def test_a_function_that_decays_until_the_end_causes_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert told_by(lambda step: 0.1 * (1 - step / 12), capsys) == ""
    assert told_by(lambda step: 0.1 if step < 8 else 0.001, capsys) == ""
