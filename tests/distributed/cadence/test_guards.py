"""Guards decide from the divergence of the replicas."""

import json
import math

import pytest

from flodl.core import DistributedError
from flodl.distributed.cadence import GrowthGuard, LevelGuard, NoGuard, make_guard


def kinds(guard, values, steps=10):
    return [guard.observe(each, steps=steps).kind for each in values]


def test_the_level_guard_needs_three_rises_and_a_value_above_its_threshold():
    assert kinds(LevelGuard(0.05), [0.06, 0.07, 0.08, 0.09]) == ["stable"] * 3 + ["suppress"]
    assert kinds(LevelGuard(0.05), [0.01, 0.02, 0.03, 0.04]) == ["stable"] * 4
    assert kinds(LevelGuard(0.05), [0.06, 0.09, 0.08, 0.10, 0.11]) == ["stable"] * 5


def test_windows_may_grow_further_only_far_below_the_threshold():
    guard = LevelGuard(0.05)
    assert [guard.observe(each, steps=10).calm for each in (0.0, 0.02, 0.021, 0.06)] == [
        True,
        True,
        False,
        False,
    ]
    assert NoGuard().observe(None, steps=10).calm
    assert not GrowthGuard().observe(0.0, steps=10).calm


def test_the_reason_of_a_verdict_has_the_numbers():
    guard = LevelGuard(0.05)
    kinds(guard, [0.01, 0.02, 0.03])
    assert guard.observe(0.09, steps=1).reason == (
        "the divergence rose three times in a row, to 0.09 (threshold 0.05)"
    )


def test_the_growth_guard_suppresses_slow_growth_and_shrinks_on_fast_growth():
    slow = [0.01 * math.exp(0.02 * each) for each in range(6)]
    assert kinds(GrowthGuard(), slow) == ["stable"] * 3 + ["suppress"] * 3
    fast = [0.01 * math.exp(0.2 * each) for each in range(6)]
    assert kinds(GrowthGuard(), fast) == ["stable"] * 3 + ["nudge"] * 3
    guard = GrowthGuard()
    kinds(guard, fast)
    assert guard.observe(1.0, steps=10).factor == 0.5


def test_the_growth_guard_counts_growth_per_batch_not_per_window():
    values = [0.01 * math.exp(0.02 * each) for each in range(6)]
    assert kinds(GrowthGuard(), values, steps=1000) == ["stable"] * 6


def test_equal_or_vanishing_divergence_is_stable():
    assert kinds(GrowthGuard(), [0.0] * 5) == ["stable"] * 5
    assert kinds(GrowthGuard(), [0.3] * 5) == ["stable"] * 5


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_divergence_that_was_not_measured_never_counts_as_stable(value):
    assert LevelGuard().observe(value, steps=1).kind == "suppress"
    assert GrowthGuard().observe(value, steps=1).kind == "suppress"
    assert NoGuard().observe(value, steps=1).kind == "stable"


@pytest.mark.parametrize("name", ["none", "level", "growth"])
def test_a_restored_guard_continues_with_the_same_verdicts(name):
    values = [0.01 * 1.3**each for each in range(8)]
    guard, twin = make_guard(name), make_guard(name)
    kinds(guard, values[:4])
    twin.restore(json.loads(json.dumps(guard.state())))
    assert kinds(twin, values[4:]) == kinds(guard, values[4:])


def test_an_unknown_guard_and_a_wrong_threshold_are_errors():
    with pytest.raises(
        DistributedError, match=r"there is no guard 'trend'. Use one of 'none', 'level', 'growth'"
    ):
        make_guard("trend")
    with pytest.raises(DistributedError, match="at 'threshold': expected a positive number, got 0"):
        LevelGuard(0.0)
