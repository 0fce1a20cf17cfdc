"""A schedule that is much longer than the run is reported when the run begins."""

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


@pytest.fixture
def told(make, data, capsys):
    """Return a function that trains for six updates and returns the warnings."""

    def run(schedule, **settings):
        make(schedule=schedule).fit(data, epochs=2, batch_size=8, **settings)
        return capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    "schedule", [OneCycleLR(0.1, 30), CyclicLR(0.01, 0.1, 9), WarmupScheduler(OneCycleLR(0.1, 20), 0.1, 3)]
)
def test_a_run_that_ends_before_the_peak_is_reported(told, schedule):
    assert "the schedule reaches its peak of 0.1 after 9 updates, and the run has only 6: " in told(schedule)


@pytest.mark.parametrize(
    "schedule",
    [
        CosineScheduler(0.1, 0.0, 19),
        WarmupScheduler(CosineScheduler(0.1, 0.0, 17), 0.1, 2),
        StepDecay(0.1, 19, 0.1),
        MultiStepLR(0.1, (19, 30), 0.1),
        OneCycleLR(0.1, 19, warmup_frac=0.1),
    ],
)
def test_a_run_that_ends_within_the_first_third_of_a_schedule_is_reported(told, schedule):
    assert "the schedule is 19 updates long, and the run has only 6: the learning rate goes from" in told(
        schedule
    )


@pytest.mark.parametrize(
    "schedule",
    [
        OneCycleLR(0.1, 6),
        OneCycleLR(0.1, 18),
        CyclicLR(0.01, 0.1, 2),
        CosineScheduler(0.1, 0.0, 18),
        StepDecay(0.1, 2, 0.5),
        MultiStepLR(0.1, (18,), 0.1),
        ExponentialLR(0.1, 0.99),
    ],
)
def test_a_schedule_of_about_the_length_of_the_run_is_not_reported(told, schedule):
    assert told(schedule) == ""


def test_a_trial_with_a_limit_is_not_reported(told):
    assert told(OneCycleLR(0.1, 900), limit=1) == ""


@pytest.mark.parametrize(
    "schedule",
    [StepDecay(0.1, 3, 10), MultiStepLR(0.1, (3,), 10), WarmupScheduler(StepDecay(0.1, 2, 10), 0.1, 2)],
)
def test_a_decay_that_raises_the_rate_is_reported(told, schedule):
    text = told(schedule)
    assert "the schedule raises the learning rate from 0.1 to " in text
    assert "To divide it by 10, write gamma=0.1." in text


def test_tf32_on_a_device_without_it_is_reported(make, data, capsys):
    make(precision="tf32").fit(data, epochs=1, batch_size=8)
    assert "precision='tf32' has no effect on 'cpu'" in capsys.readouterr().out
    make().fit(data, epochs=1, batch_size=8)
    assert "tf32" not in capsys.readouterr().out
