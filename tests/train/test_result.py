"""The result of a run names its best epoch."""

import math

import pytest

from flodl.core import MetricError, TrainError
from flodl.train import FitResult

ROWS = [{"epoch": 1, "loss": 0.5, "accuracy": 0.7}, {"epoch": 2, "loss": 0.6, "accuracy": 0.8}]


def test_the_best_epoch_is_that_of_the_lowest_loss_and_of_the_highest_accuracy():
    result = FitResult(ROWS, steps=2)
    assert [result.best(name)["epoch"] for name in ("loss", "accuracy")] == [1, 2]


def test_a_mode_that_is_given_is_used_whatever_the_name():
    result = FitResult(ROWS, steps=2)
    assert [result.best(name, mode="min")["epoch"] for name in ("loss", "accuracy")] == [1, 1]
    assert [result.best(name, mode="max")["epoch"] for name in ("loss", "accuracy")] == [2, 2]
    with pytest.raises(TrainError, match=r"mode='highest'. Use 'min' or 'max'"):
        result.best("loss", mode="highest")


def test_the_best_epoch_of_an_unknown_metric_is_an_error_with_a_suggestion():
    with pytest.raises(MetricError, match=r"no metric 'acuracy' was recorded. Did you mean 'accuracy'\?"):
        FitResult(ROWS, steps=2).best("acuracy")


def test_without_a_number_there_is_no_best_epoch():
    assert FitResult([], steps=0).best("loss") == {}
    assert FitResult([{"epoch": 1, "loss": math.nan}], steps=1).best("loss") == {}
