"""Which value of a metric is the best, up to rounding."""

import math

import pytest

from flodl.core.best_values import best_position, improves


@pytest.mark.parametrize(("mode", "sign"), [("max", 1), ("min", -1)])
def test_a_difference_that_is_only_rounding_is_no_improvement(mode, sign):
    for scale in (1e-8, 0.3, 1e8):
        assert not improves(sign * scale * (1 + 1e-7), sign * scale, mode)
        assert improves(sign * scale * (1 + 1e-5), sign * scale, mode)
    assert improves(sign * 1e-30, 0.0, mode)


def test_small_improvements_add_up():
    values = [1.0 - 4e-7 * epoch for epoch in range(8)]
    assert best_position(values, "min") == 6  # 0, then 3, then 6: each is more than a millionth better


def test_infinities_are_ordered_and_nan_is_left_out():
    assert best_position([math.nan, math.inf, 1.0, -math.inf], "min") == 3
    assert best_position([-math.inf, 1.0, math.inf, math.inf], "max") == 2
    assert best_position([math.nan], "max") is None
    assert not improves(math.nan, 1.0, "min")
