"""A DataLoader whose workers all yield the same samples is reported; other ones are not."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from flodl.data import Loader

pytestmark = pytest.mark.slow  # starts processes


class Undivided(IterableDataset):
    def __iter__(self):
        return iter([torch.tensor([float(n), 1.0]) for n in range(12)])


class Divided(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        return iter([torch.tensor([float(n), 1.0]) for n in range(info.id, 12, info.num_workers)])


class DividedByInit(IterableDataset):
    first, step = 0, 1

    def __iter__(self):
        return iter([torch.tensor(float(n)) for n in range(self.first, 12, self.step)])


class Random(IterableDataset):
    def __iter__(self):
        return (torch.rand(3) for _ in range(12))


class Constant(IterableDataset):
    def __iter__(self):
        return iter([torch.ones(3)] * 12)


def divide(worker):
    info = get_worker_info()
    info.dataset.first, info.dataset.step = worker, info.num_workers


def read(loader):
    for _epoch in range(2):
        for batch in loader:
            batch.zero_()  # a program may write to its batches


@pytest.mark.parametrize("batch_size", [1, 4, None])
def test_a_dataset_that_is_not_divided_among_the_workers_is_reported_once(batch_size, capsys):
    read(Loader(DataLoader(Undivided(), batch_size=batch_size, num_workers=2), None))
    assert (
        capsys.readouterr().err.count(
            "each of the 2 workers of the DataLoader yields the same samples of Undivided, so an epoch has "
            "every sample 2 times. In Undivided.__iter__, yield only the part"
        )
        == 1
    )


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (Divided(), {"num_workers": 2}),
        (DividedByInit(), {"num_workers": 2, "worker_init_fn": divide}),
        (Random(), {"num_workers": 2}),
        (Constant(), {"num_workers": 2}),
        (Undivided(), {"num_workers": 1}),
        (Undivided(), {}),
        (torch.eye(1).repeat(12, 1), {"num_workers": 2}),
    ],
    ids=["divided", "divided by worker_init_fn", "random", "constant", "one worker", "no worker", "a list"],
)
def test_other_datasets_are_not_reported(dataset, options, capsys):
    read(Loader(DataLoader(dataset, batch_size=4, **options), None))
    assert capsys.readouterr().err == ""
