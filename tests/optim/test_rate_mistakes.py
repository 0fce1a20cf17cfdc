"""Warnings about schedules that return factors, and about rates that something else has set."""

from __future__ import annotations

import math

import pytest
import torch

from flodl.optim import CosineScheduler, WarmupScheduler, apply

FACTORS = "the schedule rises to a learning rate of 1, in place of the"


def new_optimizer(kind=torch.optim.SGD, **settings):
    return kind([torch.nn.Parameter(torch.zeros(1))], **settings)


def told_by(schedule, optimizer, capsys, *, num_steps: int = 250) -> str:
    bridge = apply(schedule, optimizer)
    for _ in range(num_steps):
        optimizer.step()
        bridge.step()
    return capsys.readouterr().err


def warm_up(step: int) -> float:
    return min(1.0, (step + 1) / 100)


def warm_up_and_decay(step: int) -> float:
    return step / 100 if step < 100 else 0.5 * (1 + math.cos(math.pi * (step - 100) / 150))


@pytest.mark.parametrize("schedule", [warm_up, warm_up_and_decay])
@pytest.mark.parametrize(
    ("kind", "settings", "lr"),
    [
        (torch.optim.Adam, {"lr": 0.02}, 0.02),
        (torch.optim.NAdam, {"lr": 0.1}, 0.1),
        (torch.optim.SGD, {"lr": 0.1}, 0.1),
        (torch.optim.SGD, {"lr": 0.05}, 0.05),
    ],
)
def test_factors_that_rise_to_one_are_a_warning_once(schedule, kind, settings, lr, capsys) -> None:
    told = told_by(schedule, new_optimizer(kind, **settings), capsys)
    assert told.count("\n") == 1
    assert f"{FACTORS} optimizer's {lr:g}" in told
    assert f"multiply them by {lr:g}" in told


def test_the_warning_about_factors_comes_one_step_after_the_peak(capsys) -> None:
    bridge = apply(warm_up, new_optimizer(torch.optim.Adam, lr=0.02))
    bridge.set_step(99)
    assert capsys.readouterr().err == ""
    bridge.step()
    assert FACTORS in capsys.readouterr().err


@pytest.mark.parametrize(
    ("schedule", "kind", "settings"),
    [
        # The rate is given by the schedule alone, and the optimizer has the default of its class.
        (warm_up, torch.optim.SGD, {}),
        (warm_up_and_decay, torch.optim.SGD, {"momentum": 0.9}),
        # The optimizer has a rate of the same order.
        (warm_up, torch.optim.SGD, {"lr": 0.5}),
        (warm_up, torch.optim.Adadelta, {}),
        # The schedule was created with its peak.
        (WarmupScheduler(CosineScheduler(1.0, 0.0, 200), 1.0, 50), torch.optim.SGD, {"lr": 0.01}),
        # A search for the best rate.
        (lambda step: 10 ** (-7 + step / 20), torch.optim.Adam, {"lr": 1e-3}),
        (lambda step: 1e-7 * 1.1**step, torch.optim.SGD, {"lr": 0.01}),
        # Peaks other than 1.
        (lambda step: 0.5 * warm_up(step), torch.optim.SGD, {"lr": 0.01}),
        (lambda step: 2e-3 * warm_up(step), torch.optim.Adam, {"lr": 1e-3}),
        (lambda step: 512**-0.5 * min((step + 1) ** -0.5, (step + 1) * 40**-1.5), torch.optim.Adam, {}),
    ],
)
def test_rates_that_may_be_meant_are_not_taken_for_factors(schedule, kind, settings, capsys) -> None:
    assert told_by(schedule, new_optimizer(kind, **settings), capsys) == ""


def product(step: int) -> float:
    """Return a warm-up times a cosine, whose peak is below 1."""
    return min(1.0, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * step / 250))


@pytest.mark.parametrize("schedule", [warm_up, warm_up_and_decay, product])
@pytest.mark.parametrize(
    ("kind", "settings", "lr"),
    [
        (torch.optim.AdamW, {"lr": 3e-4}, 0.0003),
        (torch.optim.AdamW, {"lr": 2e-5}, 0.00002),
        (torch.optim.Adam, {}, 0.001),
        (torch.optim.SGD, {"lr": 1e-4}, 0.0001),
    ],
)
def test_rates_of_many_times_that_of_the_optimizer_are_a_warning_once(
    schedule, kind, settings, lr, capsys
) -> None:
    told = told_by(schedule, new_optimizer(kind, **settings), capsys)
    assert told.count("\n") == 1
    assert f"times the optimizer's {lr:g}" in told
    assert f"schedule=lambda step: {lr:g} * factor(step)" in told


def test_the_warning_names_both_rates_as_soon_as_one_is_set(capsys) -> None:
    apply(lambda step: 0.25, new_optimizer(torch.optim.AdamW, lr=5e-4))
    assert (
        "sets the learning rate to 0.25, which is 500 times the optimizer's 0.0005" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("schedule", "kind", "settings"),
    [
        # A warm-up to the rate of the optimizer, and to ten times of it.
        (lambda step: 3e-4 * warm_up(step), torch.optim.AdamW, {"lr": 3e-4}),
        (lambda step: 3e-3 * product(step), torch.optim.AdamW, {"lr": 3e-4}),
        # An optimizer with a placeholder, and one with the default of its class.
        (lambda step: 0.1 * warm_up(step), torch.optim.SGD, {"lr": 1e-8}),
        (lambda step: 1e-3 * warm_up(step), torch.optim.AdamW, {"lr": 1e-6}),
        (lambda step: 0.1, torch.optim.SGD, {}),
        (lambda step: 0.1, torch.optim.Adam, {}),
        # A search for the best rate.
        (lambda step: 1e-6 * 1.1**step, torch.optim.AdamW, {"lr": 3e-4}),
        (lambda step: 1e-6 * 1.1**step, torch.optim.SGD, {"lr": 1e-6}),
        # Schedules that are created with their rates.
        (CosineScheduler(0.5, 0.0, 200), torch.optim.SGD, {"lr": 1e-4}),
        (WarmupScheduler(CosineScheduler(0.5, 0.0, 200), 0.5, 50), torch.optim.SGD, {"lr": 1e-4}),
    ],
)
def test_high_rates_that_may_be_meant_are_not_taken_for_factors(schedule, kind, settings, capsys) -> None:
    assert told_by(schedule, new_optimizer(kind, **settings), capsys) == ""


def test_a_constant_factor_is_reported_at_step_0_only(capsys) -> None:
    told = told_by(lambda step: 1.0, new_optimizer(torch.optim.Adam, lr=1e-3), capsys)
    assert told.count("\n") == 1
    assert "returns 1 at step 0" in told


def test_an_optimizer_that_was_loaded_without_its_schedule_is_a_warning_that_says_so(capsys) -> None:
    def schedule(step: int) -> float:
        return 0.1 / (step + 1)

    first = new_optimizer(lr=0.1)
    bridge = apply(schedule, first)
    for _ in range(4):
        bridge.step()
    second = new_optimizer(lr=0.1)
    resumed = apply(schedule, second)
    second.load_state_dict(first.state_dict())
    resumed.step()
    resumed.step()
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "loaded with a learning rate of 0.02, but the schedule is at step 0, where it had set 0.1" in told
    assert "step.load_state_dict(saved)" in told
