import math

import pytest

from flodl.core import ScheduleError
from flodl.optim import CosineScheduler, ExponentialLR, MultiStepLR, StepDecay

NAN, INF = float("nan"), float("inf")


def test_step_decay_multiplies_every_step_size_steps():
    schedule = StepDecay(0.1, 10, 0.5)
    assert [schedule.lr(step) for step in (0, 9, 10, 19, 20)] == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025])


def test_exponential_multiplies_every_step():
    assert [ExponentialLR(0.1, 0.9).lr(step) for step in range(4)] == pytest.approx(
        [0.1, 0.09, 0.081, 0.0729]
    )


def test_a_growing_exponential_ends_at_infinity_rather_than_in_an_exception():
    assert ExponentialLR(0.1, 2.0).lr(10_000) == INF


def test_multi_step_counts_the_milestones_reached_in_any_order():
    schedule = MultiStepLR(0.1, [80, 30], 0.1)
    assert schedule.milestones == (30, 80)
    assert [schedule.lr(step) for step in (0, 29, 30, 79, 80)] == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001])


@pytest.mark.parametrize("step", [0, 1, 20, 45, 89, 90, 91, 1000])
def test_cosine_follows_the_formula_and_stays_at_the_minimum(step):
    t = min(step, 90) / 90
    expected = 0.001 + 0.5 * (0.1 - 0.001) * (1 + math.cos(math.pi * t))
    assert CosineScheduler(0.1, 0.001, 90).lr(step) == pytest.approx(expected, rel=1e-12)


def test_cosine_is_precise_just_before_the_end():
    total = 10**6
    exact = (math.pi / (2 * total)) ** 2
    assert CosineScheduler(1.0, 0.0, total).lr(total - 1) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: StepDecay(-0.1, 10, 0.5),
            r"StepDecay: base=-0\.1, expected a finite number above 0\. Pass the",
        ),
        (lambda: StepDecay(NAN, 10, 0.5), r"StepDecay: base=nan"),
        (lambda: StepDecay("0.1", 10, 0.5), r"StepDecay: base='0\.1'"),
        (lambda: StepDecay(True, 10, 0.5), r"StepDecay: base=True"),
        (
            lambda: StepDecay(0.1, 0, 0.5),
            r"StepDecay: step_size=0, expected an integer of at least 1\. It",
        ),
        (lambda: StepDecay(0.1, 2.5, 0.5), r"StepDecay: step_size=2\.5"),
        (
            lambda: StepDecay(0.1, 10, 0.0),
            r"StepDecay: gamma=0\.0, expected a finite number above 0\. 0\.1 div",
        ),
        (lambda: ExponentialLR(0.0, 0.9), r"ExponentialLR: base=0\.0"),
        (lambda: ExponentialLR(0.1, -0.9), r"ExponentialLR: gamma=-0\.9"),
        (lambda: ExponentialLR(0.1, INF), r"ExponentialLR: gamma=inf"),
        (lambda: MultiStepLR(INF, [1], 0.1), r"MultiStepLR: base=inf"),
        (
            lambda: MultiStepLR(0.1, [], 0.1),
            r"MultiStepLR: milestones=\[\], expected at least one .*\[30, 80\]",
        ),
        (lambda: MultiStepLR(0.1, 30, 0.1), r"MultiStepLR: milestones=30, expected at least one step"),
        (
            lambda: MultiStepLR(0.1, [30, -1], 0.1),
            r"MultiStepLR: milestone=-1, expected .* at least 0\. A mile",
        ),
        (lambda: MultiStepLR(0.1, [30], NAN), r"MultiStepLR: gamma=nan"),
        (
            lambda: CosineScheduler(0.1, 0.001, 0),
            r"CosineScheduler: total=0, expected .* at least 1\. Pass the n",
        ),
        (
            lambda: CosineScheduler(0.1, 0.2, 90),
            r"CosineScheduler: min=0\.2, .* at least 0 and at most 0\.1\. Pass",
        ),
        (lambda: CosineScheduler(0.1, -0.2, 90), r"CosineScheduler: min=-0\.2"),
        (lambda: CosineScheduler(-0.1, 0.0, 90), r"CosineScheduler: base=-0\.1"),
    ],
)
def test_settings_out_of_range_are_rejected_at_construction(build, message):
    with pytest.raises(ScheduleError, match=message):
        build()
