"""An argument that does not fit the source is rejected, never ignored."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from flodl.core import DataError
from flodl.data import Loader, WeightedSampler

X = torch.arange(20.0)


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(X)


class Negative(Dataset):
    def __len__(self):
        return -1

    def __getitem__(self, index):
        return index


def batches(**settings):
    return DataLoader(TensorDataset(X), **{"batch_size": 4, **settings})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Loader(Numbers(), 4, shuffle=True), r"shuffle=True with an iterable.*shuffle_buffer=1000"),
        (lambda: Loader(iter(X), 4, shuffle=True), "shuffle=True with an iterable"),
        (lambda: Loader([X, X], None, shuffle=True), "shuffle=True with a list of batches"),
        (lambda: Loader(batches(), None, shuffle=True), r"shuffle=True with a DataLoader.*has its own order"),
        (lambda: Loader(batches(shuffle=True), None, shuffle=False), "shuffle=False with a DataLoader"),
        (
            lambda: Loader(Numbers(), 4, shuffle=False, shuffle_buffer=8),
            "shuffle=False with shuffle_buffer=8",
        ),
        (lambda: Loader(X, 4, shuffle=True, sampler=[1, 2]), "shuffle=True with sampler="),
        (lambda: Loader(X, 4, shuffle="no"), "shuffle='no'. Pass True or False."),
        (lambda: Loader(X, 4, drop_last=1), "drop_last=1. Pass True or False."),
        (
            lambda: Loader(batches(), batch_size=16),
            r"batch_size=16 with a DataLoader, which already makes batches\. Use Loader\(dataloader, "
            r"batch_size=None\) to keep them, or .*Loader\(dataloader\.dataset, batch_size=16\)",
        ),
        (lambda: Loader(Loader(X, 4), 16), "the source is a Loader, which yields batches itself"),
        (lambda: Loader(batches(), None, drop_last=True), "drop_last=True with batch_size=None"),
        (lambda: Loader(iter([X]), None, drop_last=True), "drop_last=True with batch_size=None"),
        (lambda: Loader(iter([X]), None, collate=torch.stack), "collate= with batch_size=None"),
        (lambda: Loader(batches(), None, num_workers=2), "num_workers=2 with a DataLoader"),
        (lambda: Loader(iter(X), 4, num_workers=2), "num_workers=2 with an iterator"),
        (lambda: Loader(X, 4, num_workers=2, mode="resident"), "num_workers=2 with mode='resident'"),
        (lambda: Loader(Numbers(), 4, sampler=[1]), "sampler= cannot be used"),
        (lambda: Loader(X, 4, sampler=WeightedSampler([1.0] * 3)), "3 weights for 20 samples"),
        (lambda: WeightedSampler([1.0, 1.0], num_samples=1.5), "num_samples=1.5"),
        (lambda: WeightedSampler(["a", "b"]), "WeightedSampler: .*Pass one number per sample"),
        (lambda: Loader(Numbers, 4), r"the source is the class Numbers\. Pass an object: Numbers"),
        (lambda: Loader(X, 4, sampler=WeightedSampler), "the sampler is the class WeightedSampler"),
        (lambda: Loader(Subset(TensorDataset(X), [0.5]), 4), r"the Subset has indices \(1,\) torch.float32"),
        (lambda: Loader(Negative(), 4), r"the length of the Negative cannot be read: __len__\(\) should"),
    ],
)
def test_an_argument_that_would_be_ignored_raises(make, message):
    with pytest.raises(DataError, match=message):
        make()


@pytest.mark.parametrize(
    "targets", [X, X.numpy(), X.tolist(), (X, X)], ids=["tensor", "array", "list", "tuple"]
)
def test_targets_in_place_of_the_batch_size_raise_with_the_right_call(targets):
    with pytest.raises(DataError, match=r"batch_size is an? \w+\. .* Loader\(\(x, y\), batch_size=64\)"):
        Loader(X, targets)


def test_consistent_arguments_are_accepted():
    rows = torch.cat(list(Loader(Numbers(), 4, shuffle=True, shuffle_buffer=20))).tolist()
    assert sorted(rows) == X.tolist() != rows
    assert len(list(Loader(batches(shuffle=True), None, shuffle=True))) == 5
    assert len(list(Loader(batches(), None, shuffle=False))) == 5
    assert next(iter(Loader(X, 4, shuffle=np.False_))).tolist() == [0, 1, 2, 3]
    assert next(iter(Loader(X, 4, shuffle=False, sampler=[3, 1]))).tolist() == [3, 1]


def test_a_dataloader_that_does_not_batch_gets_a_batch_size():
    (x,) = next(iter(Loader(batches(batch_size=None), batch_size=16)))
    assert x.tolist() == X[:16].tolist()


def test_the_reason_says_that_workers_are_not_needed():
    loader = Loader(X, 4, num_workers=2)
    assert loader.reason.endswith("is already in host memory, so num_workers=2 is not used")


def test_an_epoch_that_drop_last_leaves_empty_raises():
    loader = Loader(X, 4, sampler=lambda epoch: range(8 - 6 * epoch), drop_last=True)
    assert len(list(loader)) == 2
    with pytest.raises(DataError, match=r"epoch 1 has no batch: 2 samples, batch_size=4, drop_last=True"):
        list(loader)


def test_numbers_of_numpy_are_those_of_python():
    loader = Loader(
        torch.arange(8), np.int64(4), seed=np.int32(1), prefetch=np.int8(2), memory_cap=np.float32(0.5)
    )
    assert [batch.tolist() for batch in loader] == [
        batch.tolist() for batch in Loader(torch.arange(8), 4, seed=1)
    ]
    loader.set_epoch(np.int64(3))
    assert (loader.epoch, type(loader.batch_size)) == (3, int)
