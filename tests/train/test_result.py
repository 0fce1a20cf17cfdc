"""The result of a run names its best epoch."""

import copy
import math
import pickle

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


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("epochs", r"len\(result\.history\)"),
        ("best_score", r"result\.best\('eval_loss'\)"),
        ("accuracy", r"result\.metrics\['accuracy'\]"),
        ("histroy", "Did you mean 'history'"),
    ],
)
def test_an_attribute_of_other_frameworks_says_what_to_write(name, advice):
    with pytest.raises(TrainError, match=f"no attribute {name!r}. .*{advice}") as raised:
        getattr(FitResult(ROWS, steps=2), name)
    assert isinstance(raised.value, AttributeError)


def test_a_result_can_be_copied():
    result = FitResult(ROWS, steps=2)
    assert copy.deepcopy(result) == pickle.loads(pickle.dumps(result)) == result
