"""Tests of the sampler that groups samples by length."""

from __future__ import annotations

import pytest
import torch

from flodl.core import DataError
from flodl.data import LengthGroupedSampler, Loader

CPU = torch.device("cpu")


def order(sampler: LengthGroupedSampler, count: int, *, seed: int = 0, epoch: int = 0) -> torch.Tensor:
    return sampler.order(count, seed=seed, epoch=epoch, device=CPU)


def test_every_sample_occurs_once_and_lengths_in_a_batch_are_similar() -> None:
    lengths = torch.randint(1, 100, (1000,), generator=torch.Generator().manual_seed(0))
    found = order(LengthGroupedSampler(lengths, 10), 1000)
    assert torch.equal(found.sort().values, torch.arange(1000))
    spread = lengths[found].view(100, 10)
    assert (spread.amax(1) - spread.amin(1)).float().mean() < 4


def test_batches_come_in_random_order_that_depends_on_seed_and_epoch() -> None:
    lengths = torch.arange(640)
    sampler = LengthGroupedSampler(lengths, 8)
    firsts = lengths[order(sampler, 640)].view(-1, 8)[:, 0]
    assert (firsts[1:] < firsts[:-1]).any()
    assert (firsts[1:] > firsts[:-1]).any()
    assert torch.equal(order(sampler, 640), order(sampler, 640))
    assert not torch.equal(order(sampler, 640), order(sampler, 640, epoch=1))
    assert not torch.equal(order(sampler, 640), order(sampler, 640, seed=1))


def test_the_incomplete_batch_is_the_last_one() -> None:
    lengths = [5, 1, 9, 1, 5, 9, 7]
    found = [lengths[index] for index in order(LengthGroupedSampler(lengths, 2), 7).tolist()]
    assert all(abs(a - b) <= 2 for a, b in zip(found[0:6:2], found[1:6:2]))
    assert sorted(found) == sorted(lengths)


def test_a_loader_resumes_in_the_middle_of_an_epoch() -> None:
    data = torch.arange(50)

    def loader() -> Loader:
        return Loader(data, 8, sampler=LengthGroupedSampler(data % 7, 8), seed=3)

    whole, again = loader(), loader()
    batches = [batch.tolist() for batch in whole]
    first = loader()
    for _, batch in zip(range(3), first):
        assert batch.tolist() in batches
    again.load_state_dict(first.state_dict())
    assert [batch.tolist() for batch in again] == batches[3:]


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(DataError, match="3 lengths for 4 samples"):
        Loader(torch.arange(4), 2, sampler=LengthGroupedSampler([1, 2, 3], 2))
    with pytest.raises(DataError, match="batch_size=0"):
        LengthGroupedSampler([1], 0)


@pytest.mark.parametrize("lengths", [None, "abc", ["a"], {"a": 1}])
def test_lengths_that_are_not_numbers_are_an_error(lengths):
    with pytest.raises(DataError, match=r"lengths=.* are not numbers .*Pass the length of each sample"):
        LengthGroupedSampler(lengths, batch_size=2)
