"""Collation: lists of numbers in an iterable are rows; everything else is as in torch."""

import collections

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from flodl.core import DataError
from flodl.data import Loader

Pair = collections.namedtuple("Pair", ["row", "label"])


def streamed(*samples, **settings):
    (batch,) = Loader(iter(samples), len(samples), **settings)
    return batch


def test_lists_of_numbers_in_an_iterable_are_rows():
    batch = streamed({"ids": [1, 2, 3], "n": 1}, {"ids": [4, 5, 6], "n": 2})
    assert batch["ids"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert batch["n"].tolist() == [1, 2]
    row, label = streamed(([0.5, 1.5], 0), ([2.5, 3.5], 1))
    assert row.dtype == torch.float64
    assert row.shape == (2, 2)
    assert label.tolist() == [0, 1]
    grid, _ = streamed(([[1, 2], [3, 4]], "a"), ([[5, 6], [7, 8]], "b"))
    assert grid.shape == (2, 2, 2)


def test_a_sample_that_is_a_list_is_the_list_of_its_parts():
    x, y = streamed([1, 2], [3, 4])
    assert (x.tolist(), y.tolist()) == ([1, 3], [2, 4])
    row, label = streamed([[1, 2], 0], [[3, 4], 1])
    assert (row.tolist(), label.tolist()) == ([[1, 2], [3, 4]], [0, 1])


@pytest.mark.parametrize(
    "samples",
    [
        [{"words": ["a", "b"]}, {"words": ["c", "d"]}],
        [{"parts": [torch.ones(2), torch.ones(3)]}, {"parts": [torch.ones(2), torch.ones(3)]}],
        [{"pair": (1, 2)}, {"pair": (3, 4)}],
        [{"none": []}, {"none": []}],
        [Pair(torch.ones(2), 1), Pair(torch.zeros(2), 2)],
        [torch.ones(2), torch.zeros(2)],
    ],
    ids=["words", "tensors", "tuples", "empty", "named tuple", "tensor"],
)
def test_everything_else_is_collated_as_torch_does(samples):
    ours, theirs = streamed(*samples), default_collate(samples)
    assert type(ours) is type(theirs)
    assert str(ours) == str(theirs)


def test_lists_of_a_map_style_dataset_are_collated_as_torch_does():
    (batch,) = Loader([{"ids": [1, 2]}, {"ids": [3, 4]}], 2, shuffle=False)
    assert [part.tolist() for part in batch["ids"]] == [[1, 3], [2, 4]]


def test_a_user_collate_function_gets_the_samples_unchanged():
    samples = [{"ids": [1, 2]}, {"ids": [3]}]
    assert streamed(*samples, collate=lambda given: given) == samples


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        ([{"ids": [1, 2]}, {"ids": [1, 2, 3]}], "'ids' has lists of 2 to 3 items"),
        ([([1, 2], 0), ([1], 0)], "there are lists of 1 to 2 items"),
        ([{"ids": [[1], [1, 2]]}] * 2, "there are lists of unequal lengths within lists"),
        ([{"ids": [1, None]}] * 2, "found <class 'NoneType'>"),
        ([{"deep": {"a": 1}}, {"deep": {"b": 2}}], "one has no 'a'"),
        ([{"a": [1]}, 3], "object is not"),
        ([{"a": 1}, {"b": 2}], "sample 1 of the batch has no 'a', which sample 0 of the batch has"),
    ],
)
def test_samples_that_cannot_be_collated_raise_with_the_reason(samples, why):
    with pytest.raises(
        DataError, match=rf"2 samples cannot be collated into a batch: .*{why}.*Pass a function as collate="
    ):
        streamed(*samples)


def test_a_sample_of_a_kind_that_cannot_be_collated_is_not_taken_for_a_list_of_columns():
    with pytest.raises(DataError, match=r"found <class 'object'>. Return tensors, .* as a tensor.") as raised:
        streamed((object(), 1), (object(), 2))
    assert "columns" not in str(raised.value)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_missing_name_raises_with_the_index_of_the_sample(num_workers):
    given = Loader([{"a": 1}, {"a": 2}, {"b": 3}], 3, shuffle=False, num_workers=num_workers)
    with pytest.raises(DataError, match=r"3 samples .*: sample 2 has no 'a', which sample 0 has"):
        list(given)
    given.close()


@pytest.mark.parametrize("make", [lambda row: row[::-1], lambda row: row.astype(">f4")])
def test_flipped_and_big_endian_samples_are_accepted(make):
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    (batch,) = Loader([make(row) for row in rows], 2, shuffle=False)
    assert batch.tolist() == [make(row).tolist() for row in rows]


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (None, "sample 7 is None. The dataset, or a transform, returned it"),
        ((torch.ones(2), None), "sample 7 has None as item 1."),
        ({"x": None, "y": 1}, "sample 7 has None as 'x'."),
    ],
)
def test_a_sample_that_is_none_or_contains_none_is_named(missing, words):
    sample = {"x": torch.ones(2), "y": 1} if isinstance(missing, dict) else (torch.ones(2), 1)
    samples = [missing if index == 7 else sample for index in range(12)]
    with pytest.raises(DataError) as caught:
        [*Loader(samples, 4, seed=0)]
    assert words in str(caught.value)
    assert "collate=" not in str(caught.value)
    with pytest.raises(DataError, match="sample 1 of the batch"):
        streamed(sample, missing)
