"""A state that does not fit is refused by name, and nothing of it is loaded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from flodl.core import StepError
from flodl.engine import TrainStep
from flodl.optim import CosineScheduler, PlateauScheduler


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def new_step(updates: int = 0, **settings) -> TrainStep:
    model = nn.Linear(4, 2)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mse, **settings)
    for _ in range(updates):
        step(torch.ones(6, 4), torch.zeros(6, 2))
    return step


def changed(key: str, value: Any) -> dict[str, Any]:
    return {**new_step(3).state_dict(), key: value}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: None, "the state is a NoneType, not a mapping"),
        (lambda: [1], "the state is a list, not a mapping"),
        (lambda: nn.Linear(2, 2).state_dict(), "the state has no 'steps', 'updates', 'usual_samples'"),
        (lambda: changed("steps", "3"), "the state has steps='3', expected an integer of at least 0"),
        (lambda: changed("updates", 1.5), "the state has updates=1.5"),
        (lambda: changed("num_skipped", None), "the state has num_skipped=None"),
        (lambda: changed("usual_samples", -1), "the state has usual_samples=-1"),
        (lambda: changed("means", None), "the state's means contain None, expected a list"),
        (lambda: changed("means", [["loss", [1.0, 2.0]]]), "the state's means contain 'loss'"),
        (lambda: changed("means", [[["loss"], [1.0]]]), "the state's means contain 1 sums for 1 names"),
        (lambda: changed("means", [[["loss"], [1.0, "a"]]]), "expected names and their sums"),
        (lambda: changed("means", [[["loss"]]]), "expected names and their sums"),
        (lambda: changed("scaler", [1.0, 0, 0]), "the state was taken with a loss scaler"),
        (lambda: changed("schedule", {}), "the state was taken with a schedule"),
    ],
)
def test_an_invalid_state_is_refused_before_anything_changes(make, message: str) -> None:
    step = new_step(2)
    before = step.state_dict()
    with pytest.raises(StepError) as error:
        step.load_state_dict(make())
    assert message in str(error.value)
    assert step.state_dict() == before


@pytest.mark.parametrize("scaler", [5, [1.0], ["a", 0, 0]])
def test_a_broken_scaler_is_refused(scaler) -> None:
    step = new_step(2, precision="fp16")
    before = step.state_dict()
    with pytest.raises(StepError, match="scaler"):
        step.load_state_dict({**before, "scaler": scaler})
    assert step.state_dict() == before


@pytest.mark.parametrize(
    ("saved", "here"),
    [
        (CosineScheduler(0.1, 0.01, 9), PlateauScheduler(0.1, 3, 0.5)),
        (PlateauScheduler(0.1, 3, 0.5), CosineScheduler(0.1, 0.01, 9)),
    ],
    ids=["stateless", "stateful"],
)
def test_the_state_of_another_kind_of_schedule_is_refused(saved, here) -> None:
    step = new_step(2, schedule=here)
    before, lr = step.state_dict(), step.schedule.lr
    with pytest.raises(StepError, match=f"{type(here).__name__} has .*the same kind of schedule"):
        step.load_state_dict(new_step(3, schedule=saved).state_dict())
    assert (step.state_dict(), step.schedule.lr) == (before, lr)


@pytest.mark.parametrize(
    "broken", [None, 3, {}, {"step": "a", "lr_scale": 1, "reference_lr": 1, "ratios": [1]}]
)
def test_a_broken_schedule_is_refused(broken) -> None:
    step = new_step(2, schedule=CosineScheduler(0.1, 0.01, 9))
    before = step.state_dict()
    with pytest.raises(StepError, match="schedule"):
        step.load_state_dict({**before, "schedule": broken})
    assert step.state_dict() == before
