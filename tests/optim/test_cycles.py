import math

import pytest

from flodl.core import ScheduleError
from flodl.optim import CyclicLR, OneCycleLR


def test_one_cycle_starts_peaks_and_ends_where_it_should():
    schedule = OneCycleLR(0.01, 100)
    assert [schedule.lr(step) for step in (0, 30, 100, 500)] == pytest.approx([0.0004, 0.01, 0.0004, 0.0004])


@pytest.mark.parametrize("step", [0, 3, 14, 15, 16, 40, 49, 50, 60])
def test_one_cycle_follows_the_formula(step):
    highest, total, fraction = 0.3, 50, 0.3
    warm, low, at = round(fraction * total), highest / 25, min(step, total)
    if at < warm:
        expected = low + at / warm * (highest - low)
    else:
        expected = low + 0.5 * (highest - low) * (1 + math.cos(math.pi * (at - warm) / (total - warm)))
    assert OneCycleLR(highest, total).lr(step) == pytest.approx(expected, rel=1e-12)


def test_the_increase_takes_the_given_fraction_with_halves_rounded_up():
    assert OneCycleLR(0.01, 15).warmup_steps == 5
    assert OneCycleLR.with_warmup_frac(0.01, 200, 0.1).warmup_steps == 20
    assert OneCycleLR.with_warmup_frac(0.01, 200, 0.0).lr(0) == pytest.approx(0.01)
    assert OneCycleLR.with_warmup_frac(0.01, 200, 1.0).lr(200) == pytest.approx(0.01)


def test_a_cycle_repeats():
    schedule = CyclicLR(0.001, 0.01, 10)
    expected = [0.001, 0.0055, 0.01, 0.0055, 0.001, 0.0055]
    assert [schedule.lr(step) for step in (0, 5, 10, 15, 20, 25)] == pytest.approx(expected)


def test_an_asymmetric_cycle_has_two_speeds():
    schedule = CyclicLR.asymmetric(0.0, 1.0, 2, 8)
    assert [schedule.lr(step) for step in (0, 1, 2, 4, 6, 10, 11)] == pytest.approx(
        [0, 0.5, 1, 0.75, 0.5, 0, 0.5]
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: OneCycleLR(0.0, 100),
            r"OneCycleLR: max=0\.0, expected a finite number above 0\. Pass the highest",
        ),
        (
            lambda: OneCycleLR(0.01, 0),
            r"OneCycleLR: total=0, expected an integer of at least 1\. Pass the num",
        ),
        (
            lambda: OneCycleLR.with_warmup_frac(0.01, 100, 30),
            r"OneCycleLR: warmup_frac=30, expected a finite number at least 0 and at most 1\. .* is 30 %",
        ),
        (
            lambda: CyclicLR(-0.1, 0.01, 10),
            r"CyclicLR: base=-0\.1, expected a finite number at least 0\. Pass",
        ),
        (
            lambda: CyclicLR(0.01, 0.001, 10),
            r"CyclicLR: max=0\.001, expected a finite number above 0\.01\. Pass",
        ),
        (
            lambda: CyclicLR(0.001, 0.01, 0),
            r"CyclicLR: up=0, expected an integer of at least 1\. It counts",
        ),
        (
            lambda: CyclicLR(0.001, 0.01, 3, 0),
            r"CyclicLR: down=0, expected an integer of at least 1\. It co",
        ),
    ],
)
def test_settings_out_of_range_are_rejected_at_construction(build, message):
    with pytest.raises(ScheduleError, match=message):
        build()
