"""Values that can be recorded, and the errors for those that cannot."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from flodl.core.errors import MetricError
from flodl.observe import Book


def mean_of(value: object, **options: object) -> float:
    book = Book()
    book.record("m", value, **options)
    book.end_epoch()
    return book.latest()["m"]


@pytest.mark.parametrize(
    "value",
    [
        2.0,
        2,
        np.float32(2),
        np.int64(2),
        np.array(2.0),
        np.array([[2]]),
        Fraction(2),
        torch.tensor(2.0),
        torch.tensor([[2]]),
        torch.tensor(2.0, dtype=torch.bfloat16),
        torch.tensor(2.0, requires_grad=True),
        [1.0, 3.0],
        (1, torch.tensor(3.0), np.float64(2.0)),
        torch.tensor([1, 2, 3]),
        np.array([1.0, 3.0]),
    ],
    ids=repr,
)
def test_numbers_of_every_kind_are_accepted(value: object) -> None:
    assert mean_of(value) == 2.0


def test_bools_count_as_zero_and_one() -> None:
    assert mean_of(torch.tensor([True, False, True, True])) == 0.75
    assert mean_of(np.bool_(True)) == 1.0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(2, 3), r"'m' got a tensor of shape \(2, 3\). Reduce it to one number first"),
        (torch.zeros(0), r"'m' got an empty tensor of shape \(0,\)"),
        (torch.zeros(2, dtype=torch.complex64), r"'m' got a tensor of shape \(2,\) of dtype torch.complex64"),
        (torch.zeros(1, device="meta"), "on the meta device, which has no values"),
        (torch.zeros(2).to_sparse(), "of layout torch.sparse_coo"),
        (np.zeros((2, 2)), r"'m' got an array of shape \(2, 2\). Reduce"),
        (np.array(["x"]), "dtype <U1. Record real numbers"),
        (np.complex64(1), "dtype complex64"),
        (1j, "'m' got 1j, a complex"),
        ("0.5", "'m' got '0.5', a str"),
        (None, "'m' got None. Record a number"),
        ({"loss": torch.zeros(1)}, "'m' got a dict. Record a number"),
        ([], "'m' got an empty list"),
        ([1.0, [2.0]], "'m' got a list whose item 1 is not a single number"),
        ([torch.zeros(2)], "item 0 is not a single number"),
        (10**400, "too large for a float"),
    ],
    ids=str,
)
def test_everything_else_is_rejected_with_a_reason(value: object, message: str) -> None:
    book = Book()
    with pytest.raises(MetricError, match=message):
        book.record("m", value)
    assert book.names == []


def test_a_rejected_sequence_records_nothing() -> None:
    book = Book()
    book.record("m", 1.0)
    with pytest.raises(MetricError):
        book.record("m", [5.0, "x"])
    book.end_epoch()
    assert book.latest() == {"m": 1.0}


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf, "2", None, 1j])
def test_an_invalid_weight_is_rejected(weight: object) -> None:
    with pytest.raises(MetricError, match="the weight of the metric 'm' is"):
        mean_of(1.0, weight=weight)


def test_one_weight_applies_to_all_values_of_a_call() -> None:
    with pytest.raises(MetricError, match=r"is a tensor of shape \(2,\). Pass one weight"):
        mean_of(torch.ones(2), weight=torch.ones(2))


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_metric_name_must_be_a_string(name: object) -> None:
    with pytest.raises(MetricError, match="the metric name is"):
        Book().record(name, 1.0)
