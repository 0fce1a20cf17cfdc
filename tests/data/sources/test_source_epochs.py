"""The epoch reaches samplers and iterable datasets inside a DataLoader."""

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, TensorDataset

from flodl.data import Loader

NUMBERS = TensorDataset(torch.arange(8))


def orders(source, *, epochs=2, before=lambda epoch: None):
    """Return what a loader reads in each epoch."""
    loader, found = Loader(source, None), []
    for epoch in range(epochs):
        before(epoch)
        found.append([batch[0].tolist() for batch in loader])
    return found


def shuffled():
    return DistributedSampler(NUMBERS, num_replicas=1, rank=0)


def by_torch(loader, sampler):
    """Return the same with torch, where the program calls `set_epoch`."""
    found = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        found.append([batch[0].tolist() for batch in loader])
    return found


@pytest.mark.parametrize(
    "options",
    [
        lambda sampler: {"batch_size": 2, "sampler": sampler},
        lambda sampler: {"batch_sampler": BatchSampler(sampler, 2, drop_last=False)},
    ],
    ids=["sampler", "batch sampler"],
)
def test_each_epoch_has_its_own_order(options):
    found = orders(DataLoader(NUMBERS, **options(shuffled())))
    assert found[0] != found[1]
    sampler = shuffled()
    assert found == by_torch(DataLoader(NUMBERS, **options(sampler)), sampler)


def test_an_iterable_dataset_gets_the_epoch():
    class Counting(IterableDataset):
        epoch = 0

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            yield from torch.arange(4) + 10 * self.epoch

    loader = Loader(DataLoader(Counting(), batch_size=2), None)
    assert [[batch.tolist() for batch in loader] for _ in range(2)] == [
        [[0, 1], [2, 3]],
        [[10, 11], [12, 13]],
    ]


def test_an_epoch_that_the_program_sets_is_kept():
    sampler = shuffled()
    found = orders(DataLoader(NUMBERS, 2, sampler=sampler), before=lambda epoch: sampler.set_epoch(epoch + 7))
    other = shuffled()
    other.set_epoch(8)
    assert found[1] == [batch[0].tolist() for batch in DataLoader(NUMBERS, 2, sampler=other)]


def test_a_cursor_within_an_epoch_continues_its_order():
    sampler = shuffled()
    whole = orders(DataLoader(NUMBERS, 2, sampler=sampler))
    first = Loader(DataLoader(NUMBERS, 2, sampler=shuffled()), None)
    list(first)
    batches = iter(first)
    read = [next(batches)[0].tolist()]
    second = Loader(DataLoader(NUMBERS, 2, sampler=shuffled()), None)
    second.load_state_dict(first.state_dict())
    assert read + [batch[0].tolist() for batch in second] == whole[1]
