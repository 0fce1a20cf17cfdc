"""What the record of a run says about a torch DataLoader."""

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from flodl.data import Loader, describe_data, settled_order

DATA = TensorDataset(torch.zeros(10, 3))


class Stream(IterableDataset):
    def __iter__(self):
        yield from torch.zeros(10, 3)


class SizedStream(Stream):
    def __len__(self):
        return 10


class Pairs:
    """A batch sampler of the user."""

    def __iter__(self):
        yield from ([at, at + 1] for at in range(0, 10, 2))

    def __len__(self):
        return 5


LOADERS = {
    "in order": (DataLoader(DATA, 4), {"samples": 10, "batch_size": 4, "shuffle": False, "drop_last": False}),
    "shuffled": (DataLoader(DATA, 4, shuffle=True), {"samples": 10, "batch_size": 4, "shuffle": True}),
    "without a last batch": (DataLoader(DATA, 4, drop_last=True), {"samples": 10, "drop_last": True}),
    "a subset": (
        DataLoader(DATA, 4, sampler=SubsetRandomSampler([1, 2, 3])),
        {"samples": 3, "batch_size": 4},
    ),
    "repeated": (
        DataLoader(DATA, 4, sampler=WeightedRandomSampler([1.0] * 10, 25)),
        {"samples": 25, "batch_size": 4},
    ),
    "a batch sampler of torch": (
        DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 4, drop_last=True)),
        {"samples": 10, "batch_size": 4, "shuffle": False, "drop_last": True},
    ),
    "a batch sampler of the user": (
        DataLoader(DATA, batch_sampler=Pairs()),
        {"samples": None, "batch_size": None, "batches": 5},
    ),
    "a dataset of batches": (
        DataLoader(DATA, batch_size=None),
        {"samples": None, "batch_size": None, "batches": 10},
    ),
    "an iterable": (DataLoader(Stream(), 4), {"samples": None, "batch_size": 4}),
    "an iterable with a length": (DataLoader(SizedStream(), 4), {"samples": 10, "batch_size": 4}),
}


@pytest.mark.parametrize("loader", LOADERS)
def test_the_samples_and_the_batch_size_of_a_torch_loader_are_recorded_where_they_are_known(loader):
    of_torch, expected = LOADERS[loader]
    for found in (describe_data(of_torch), Loader(of_torch, None).description):
        assert {name: found.get(name, "missing") for name in expected} == expected
        assert ("batches" in found) == ("batches" in expected)


def test_a_loader_and_a_torch_loader_of_the_same_data_have_the_same_sizes():
    for options in ({}, {"drop_last": True}):
        own = Loader(DATA, 4, **options).description
        other = Loader(DataLoader(DATA, 4, **options), None).description
        assert [own[name] for name in ("samples", "batch_size", "drop_last")] == [
            other[name] for name in ("samples", "batch_size", "drop_last")
        ]


def test_only_a_sampler_that_the_user_wrote_is_recorded():
    def recorded(**options):
        found = describe_data(DataLoader(DATA, 4, **options))
        assert "BatchSampler" not in found["source"]
        return found.get("sampler"), found["source"].partition("batch_size=4, ")[2]

    assert recorded() == (None, "num_workers=0)")
    assert recorded(shuffle=True) == (None, "shuffle=True, num_workers=0)")
    assert recorded(sampler=RandomSampler(DATA)) == (None, "shuffle=True, num_workers=0)")
    sampler, source = recorded(sampler=SubsetRandomSampler([1, 2]))
    assert sampler == {"class": "SubsetRandomSampler", "indices": [1, 2]}
    assert source == "SubsetRandomSampler, num_workers=0)"
    assert recorded(sampler=RandomSampler(DATA, replacement=True))[0]["replacement"] is True


def test_of_a_list_of_batches_the_number_of_batches_is_recorded():
    found = Loader([torch.zeros(4, 3)] * 5, None).description
    assert (found["samples"], found["batches"], found["batch_size"]) == (None, 5, None)


def test_a_record_of_an_earlier_version_has_the_same_order():
    inner = {"class": "RandomSampler", "data_source": "the dataset", "replacement": False}
    earlier = {"class": "BatchSampler", "sampler": inner, "batch_size": 4, "drop_last": False}
    found = describe_data(DataLoader(DATA, 4, shuffle=True))
    settled = settled_order({"sampler": earlier, "samples": 3, "batch_size": None, "drop_last": False})
    assert settled == {**settled, "batch_size": 4, "drop_last": False, "shuffle": True}
    assert "sampler" not in {**found, **settled}
