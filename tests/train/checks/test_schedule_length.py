"""A schedule that was probably meant in epochs is reported."""

import re

import pytest

from flodl.optim import (
    CosineScheduler,
    CyclicLR,
    ExponentialLR,
    MultiStepLR,
    OneCycleLR,
    StepDecay,
    WarmupScheduler,
)
from flodl.train.checks.schedule_length import schedule_ends_early
from flodl.train.checks.schedule_units import in_updates

IN_EPOCHS = [
    CosineScheduler(0.1, 0.001, 10),
    OneCycleLR(0.1, 10),
    StepDecay(0.1, 3, 0.1),
    MultiStepLR(0.1, (3, 6), 0.1),
    ExponentialLR(0.1, 0.9),
    WarmupScheduler(CosineScheduler(0.1, 0.0, 9), target=0.1, warm=1),
]
IN_UPDATES = [
    CosineScheduler(0.1, 0.001, 10_000),
    CosineScheduler(0.1, 0.001, 6000),
    OneCycleLR(0.1, 10_000),
    StepDecay(0.1, 3000, 0.1),
    MultiStepLR(0.1, (800, 6000), 0.1),
    ExponentialLR(0.1, 0.9999),
    CyclicLR(0.001, 0.01, 10),
    WarmupScheduler(CosineScheduler(0.1, 0.0, 9_990), target=0.1, warm=10),
    lambda step: 0.0 if step else 0.1,
    None,
]


@pytest.mark.parametrize("schedule", IN_EPOCHS, ids=lambda one: type(one).__name__)
def test_a_schedule_that_was_written_in_epochs_is_recognized(schedule):
    text = schedule_ends_early(schedule, per_epoch=1000, epochs=10)
    assert text.startswith("the schedule counts updates, and an epoch has 1000: ")
    assert f"was meant in epochs, {in_updates(schedule, 1000)}; the whole run has 10000 updates." in text
    assert not schedule_ends_early(schedule, per_epoch=1000, epochs=1)


@pytest.mark.parametrize("schedule", IN_UPDATES, ids=lambda one: type(one).__name__)
def test_a_schedule_in_updates_is_not_reported(schedule):
    assert not schedule_ends_early(schedule, per_epoch=1000, epochs=10)


@pytest.mark.parametrize("schedule", [CosineScheduler(0.1, 0.0, 30), CosineScheduler(0.1, 0.001, 60)])
def test_a_schedule_that_ends_before_half_of_the_run_is_reported(schedule):
    text = schedule_ends_early(schedule, per_epoch=32, epochs=5)
    assert text.startswith("the schedule counts updates, and the run has 160, 32 in each epoch: ")
    assert text.endswith("was meant in epochs, multiply its total by 32.")


@pytest.mark.parametrize(
    ("schedule", "per_epoch", "epochs", "first"),
    [
        (MultiStepLR(0.1, [30, 60, 80], 0.1), 13, 90, 80),
        (MultiStepLR(0.1, [30, 60, 80], 0.1), 50, 20, 80),
        (MultiStepLR(0.1, [30, 60], 0.5), 13, 90, 60),
        (StepDecay(0.1, 30, 0.1), 100, 3, 90),
        (ExponentialLR(0.1, 0.95), 100, 3, 135),
        (WarmupScheduler(MultiStepLR(0.1, [30, 60, 80], 0.1), 0.1, 5), 13, 90, 85),
    ],
    ids=str,
)
def test_a_rate_that_is_tiny_for_most_of_the_run_and_milestones_in_epochs_are_reported(
    schedule, per_epoch, epochs, first
):
    text = schedule_ends_early(schedule, per_epoch=per_epoch, epochs=epochs)
    assert f"within the first {first} updates" in text
    assert f"was meant in epochs, {in_updates(schedule, per_epoch)}" in text


@pytest.mark.parametrize(
    "schedule",
    [
        MultiStepLR(0.1, [390, 780, 1040], 0.1),
        MultiStepLR(0.1, [120, 200], 0.1),
        MultiStepLR(0.01, [5], 10.0),
        StepDecay(0.1, 390, 0.1),
        ExponentialLR(0.1, 0.995),
        CosineScheduler(0.1, 0.0, 1170),
        CyclicLR(1e-6, 0.1, 10),
        OneCycleLR(0.1, 1170),
        WarmupScheduler(CosineScheduler(0.1, 0.0, 1000), 0.1, 170),
    ],
    ids=str,
)
def test_a_decay_over_most_of_the_run_is_not_reported(schedule):
    assert not schedule_ends_early(schedule, per_epoch=13, epochs=90)


def test_a_schedule_that_lasts_for_half_of_the_run_is_not_reported():
    assert not schedule_ends_early(CosineScheduler(0.1, 0.0, 90), per_epoch=32, epochs=5)


@pytest.mark.parametrize(
    ("schedule", "fall"),
    [
        (CosineScheduler(0.1, 0.001, 100), "from 0.1 to 0.001 within the first 100 updates"),
        (MultiStepLR(0.1, (30, 60, 90), 0.1), "from 0.1 to 0.0001 within the first 90 updates"),
        (MultiStepLR(0.1, (60, 80), 0.1), "from 0.1 to 0.001 within the first 80 updates"),
        (OneCycleLR(0.1, 100), "from 0.1 to "),
    ],
    ids=str,
)
def test_a_schedule_that_is_over_in_the_first_updates_of_a_long_run_is_reported(schedule, fall):
    text = schedule_ends_early(schedule, per_epoch=102, epochs=100)
    assert f"the learning rate falls {fall}" in text
    assert "within the first 0 updates" not in text


@pytest.mark.parametrize(
    ("schedule", "per_epoch", "epochs", "advice"),
    [
        (ExponentialLR(0.1, 0.95), 100, 8, "write gamma=0.95 ** (1 / 100)"),
        (StepDecay(0.1, 2, 0.1), 7, 4, "multiply its step_size by 7"),
    ],
    ids=str,
)
def test_a_rate_that_falls_all_the_time_is_reported_with_its_value_at_that_update(
    schedule, per_epoch, epochs, advice
):
    text = schedule_ends_early(schedule, per_epoch=per_epoch, epochs=epochs)
    fall = re.search(r"from 0.1 to (\S+) within the first (\d+) updates and further after that", text)
    assert fall is not None
    assert f"{schedule.lr(int(fall[2])):g}" == fall[1]
    assert text.endswith(f"was meant in epochs, {advice}.")


@pytest.mark.parametrize("warm", [5, 100, 400])
def test_a_warm_up_to_a_constant_rate_is_not_reported(warm):
    schedule = WarmupScheduler(ExponentialLR(0.1, 1.0), target=0.1, warm=warm)
    assert not schedule_ends_early(schedule, per_epoch=102, epochs=100)


def test_a_rate_that_is_lowered_in_one_step_and_stays_there_is_not_reported():
    assert not schedule_ends_early(MultiStepLR(0.1, (40,), 0.1), per_epoch=32, epochs=5)
