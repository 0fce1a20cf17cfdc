"""Trends: golden numbers, the full-window rule, relative tolerances, groups."""

from __future__ import annotations

import math
import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flodl.core.errors import MetricError
from flodl.observe import Trend, TrendGroup

moderate = st.floats(-1e6, 1e6, allow_nan=False)
QUESTIONS = [Trend.stalled, Trend.improving, Trend.converged]


def test_the_golden_slopes() -> None:
    assert Trend([10, 8, 6, 4, 2]).slope() == -2.0
    bumpy = Trend([1, 5, 10, 8, 6])
    assert bumpy.slope(0) > 0
    assert bumpy.slope(3) < 0


def test_the_golden_variance_is_between_the_two_tolerances() -> None:
    calm = Trend([5, 5.01, 4.99, 5, 5.01])
    assert calm.converged(5, 1e-3)
    assert not calm.converged(5, 1e-5)


@pytest.mark.parametrize("number", ["latest", "mean", "min", "max"])
def test_no_number_of_an_empty_trend_reads_as_success(number: str) -> None:
    value = getattr(Trend([]), number)
    assert math.isnan(value)
    assert not value < 0.1
    assert not value > 0.9


def test_an_empty_trend_answers_false_and_has_no_slope() -> None:
    empty = Trend([])
    assert (empty.values, empty.epochs, len(empty), bool(empty)) == ([], [], 0, False)
    assert not any(question(empty, n) for question in QUESTIONS for n in (0, 2, 5))
    assert math.isnan(empty.slope())
    assert math.isnan(Trend([1.0]).slope())  # `abs(slope) < tol` must not read as stalled


def test_values_and_epochs_are_copies_with_one_epoch_each() -> None:
    trend = Trend([1, 2, 3], epochs=[0, 4, 5], name="loss")
    trend.values.append(9.0)
    assert trend.values == [1.0, 2.0, 3.0]
    assert trend.epochs == [0, 4, 5]
    assert list(trend) == [1.0, 2.0, 3.0]
    assert Trend([7, 8]).epochs == [0, 1]
    with pytest.raises(MetricError, match="'loss' has 2 values but 1 epochs"):
        Trend([1, 2], epochs=[0], name="loss")


def test_last_returns_the_latest_values() -> None:
    trend = Trend([1, 2, 3])
    assert (trend.last(0), trend.last(2), trend.last(9)) == ([], [2.0, 3.0], [1.0, 2.0, 3.0])


def test_the_repr_shows_name_length_and_latest_values() -> None:
    assert repr(Trend([5, 4, 3, 2, 1], name="loss")) == (
        "Trend('loss', 5 values: […, 4.0000, 3.0000, 2.0000, 1.0000])"
    )


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("values", [[], [1.0], [1.0, 1.0], [2.0, 1.0]])
def test_a_trend_needs_a_full_window(question, values: list[float]) -> None:
    assert question(Trend(values), 3) is False


@pytest.mark.parametrize("question", QUESTIONS)
def test_all_points_means_at_least_two(question) -> None:
    assert question(Trend([1.0]), 0) is False


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("n", [1, -3, 2.5, True, None])
def test_a_window_that_can_never_answer_is_rejected(question, n) -> None:
    with pytest.raises(MetricError, match=f"{question.__name__} got n="):
        question(Trend([3.0, 2.0, 1.0]), n)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_answers_false(question, bad: float) -> None:
    assert question(Trend([1.0, bad, 1.0]), 3) is False
    assert question(Trend([1.0, bad]), 0) is False


def test_a_nan_before_the_window_does_not_matter() -> None:
    assert Trend([math.nan, 3.0, 2.0, 1.0]).improving(3)


def test_extremes_skip_nan_and_the_mean_does_not() -> None:
    trend = Trend([2.0, math.nan, 1.0])
    assert (trend.min, trend.max) == (1.0, 2.0)
    assert math.isnan(trend.mean)
    assert math.isnan(Trend([math.nan]).min)


def test_improving_depends_on_the_mode() -> None:
    falling, rising = Trend([3, 2, 1]), Trend([1, 2, 3])
    assert falling.improving(3)
    assert not falling.improving(3, mode="max")
    assert rising.improving(3, mode="max")
    with pytest.raises(MetricError, match=r"improving got mode='up'. Use 'min' if lower is better"):
        falling.improving(3, mode="up")


@pytest.mark.parametrize("tol", [-1e-3, math.nan])
def test_a_tolerance_below_zero_is_rejected(tol: float) -> None:
    with pytest.raises(MetricError, match="stalled got tol="):
        Trend([1, 1]).stalled(2, tol)
    with pytest.raises(MetricError, match="converged got tol="):
        Trend([]).converged(2, tol)


@given(st.lists(moderate, min_size=2, max_size=40), st.integers(0, 45))
def test_the_slope_is_the_least_squares_fit(values: list[float], n: int) -> None:
    window = values[-n:] if n else values
    expected = np.polyfit(np.arange(len(window)), window, 1)[0] if len(window) > 1 else math.nan
    assert Trend(values).slope(n) == pytest.approx(expected, rel=1e-6, abs=1e-6, nan_ok=True)


@given(st.lists(st.floats(0.5, 2.0), min_size=4, max_size=12), st.sampled_from([2.0**-20, 8.0, 2.0**20]))
def test_relative_answers_do_not_depend_on_the_scale(values: list[float], scale: float) -> None:
    plain, scaled = Trend(values), Trend([value * scale for value in values])
    for question in (Trend.stalled, Trend.converged):
        assert question(plain, 4, 0.05, relative=True) == question(scaled, 4, 0.05, relative=True)


def test_relative_answers_work_for_all_zeros() -> None:
    assert Trend([0, 0, 0]).stalled(3, relative=True)
    assert Trend([0, 0, 0]).converged(3, relative=True)


def test_a_group_combines_answers_with_all_or_any() -> None:
    group = TrendGroup({"a": Trend([3, 2, 1]), "b": Trend([1, 1, 1]), "c": Trend([1])})
    assert group.names == ["a", "b", "c"]
    assert (group.any_improving(3), group.all_improving(3)) == (True, False)
    assert (group.any_stalled(3), group.all_stalled(3)) == (True, False)
    assert (group.any_converged(3), group.all_converged(3)) == (True, False)
    assert group.slopes(3) == pytest.approx({"a": -1.0, "b": 0.0, "c": math.nan}, nan_ok=True)
    assert math.isnan(group.mean_slope(3))
    assert TrendGroup({"a": group["a"], "b": group["b"]}).mean_slope(3) == pytest.approx(-0.5)
    assert TrendGroup({"a": Trend([1, 2])}).all_improving(2, mode="max")


def test_an_empty_group_answers_false() -> None:
    group = TrendGroup({})
    assert (group.all_improving(2), group.all_stalled(2), group.all_converged(2)) == (False,) * 3
    assert (group.any_improving(2), group.any_stalled(2), group.any_converged(2)) == (False,) * 3
    assert (group.slopes(), len(group)) == ({}, 0)
    assert math.isnan(group.mean_slope())


def test_a_group_is_a_mapping_that_suggests_names() -> None:
    group = TrendGroup({"loss": Trend([1.0])})
    assert "loss" in group
    assert group["loss"].latest == 1.0
    assert group.get("lost") is None
    with pytest.raises(KeyError, match="Did you mean 'loss'"):
        group["los"]


def test_the_slope_is_per_epoch_where_epochs_are_missing():
    sparse = Trend([0.0, 10.0, 20.0], epochs=[3, 13, 23])
    assert sparse.slope() == sparse.slope(2) == 1.0
    assert sparse.stalled(3, tol=1.5)
    assert not Trend([0.0, 10.0, 20.0]).stalled(3, tol=1.5)
    uneven = Trend([0.0, 1.0, 10.0], epochs=[0, 1, 10])
    assert uneven.slope() == pytest.approx(1.0)


@pytest.mark.parametrize("epochs", [None, [7, 8, 9, 10, 11]])
def test_the_slope_of_consecutive_epochs_does_not_depend_on_the_first(epochs):
    values = [0.1, 0.7, 0.3, 0.9, 0.2]
    assert Trend(values, epochs=epochs).slope() == Trend(values).slope()


@pytest.mark.parametrize("values", ["abc", "12", ["a"], 3.0, None, [[1.0, 2.0]]])
def test_a_trend_needs_numbers(values):
    with pytest.raises(MetricError, match=r"the trend 'loss' got .* Pass a list of numbers"):
        Trend(values, name="loss")


@pytest.mark.parametrize("epochs", [[1, 1], [2, 1]])
def test_the_epochs_of_a_trend_must_increase(epochs):
    with pytest.raises(MetricError, match="got epochs that do not increase"):
        Trend([1.0, 2.0], epochs=epochs)


def test_a_group_needs_trends_by_name():
    with pytest.raises(MetricError, match=r"TrendGroup got a list. Pass a dict of trends by name"):
        TrendGroup([Trend([1.0])])


def test_a_tolerance_must_be_a_number():
    with pytest.raises(MetricError, match="stalled got tol='small'"):
        Trend([1.0, 2.0]).stalled(2, "small")


@pytest.mark.parametrize("values", [{1: 2}, {3.0}, frozenset({1.0})])
def test_a_trend_rejects_collections_without_an_order_of_values(values):
    with pytest.raises(MetricError, match="Pass a list of numbers, one for each epoch"):
        Trend(values)


def test_a_slope_at_the_tolerance_is_stalled():
    assert Trend([1, 1, 1]).stalled(3, tol=0)
    assert not Trend([1, 1, 2]).stalled(3, tol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda trend: trend.stalled(patience=2), "stalled has no argument 'patience'. Write n=…."),
        (lambda trend: trend.stalled(), r"stalled needs 'n'. Write stalled\(5\)"),
        (
            lambda trend: trend.converged(2, min_delta=1),
            "converged has no argument 'min_delta'. Write tol=….",
        ),
        (lambda trend: TrendGroup({"a": trend}).any_improving(), "any_improving needs 'n'"),
        (lambda trend: Trend(), "Trend needs 'values'"),
        (lambda trend: Trend([1.0], epochs=3), "got epochs=3. Pass a list of integers"),
        (lambda trend: TrendGroup(), "TrendGroup needs 'trends'"),
    ],
)
def test_wrong_arguments_raise_with_the_right_call(call, message):
    with pytest.raises(MetricError, match=message):
        call(Trend([1.0, 0.5]))


@pytest.mark.parametrize("compare", [operator.lt, operator.gt, operator.le, operator.ge])
def test_a_trend_that_is_compared_with_a_number_raises_with_advice(compare):
    with pytest.raises(
        MetricError, match=r"a trend is a history, not a number\. .*trend\.latest [<>]=? 0\.1"
    ):
        compare(Trend([0.5, 0.25], name="loss"), 0.1)
