"""Batches by position: what `take` accepts, and its errors."""

import numpy as np
import pytest
import torch

from flodl.core import DataError
from flodl.data import Loader


def begun():
    loader = Loader(torch.arange(10), batch_size=4, seed=1)
    loader.begin_epoch()
    return loader


def read_only(numbers):
    numbers.flags.writeable = False
    return numbers


@pytest.mark.parametrize(
    "positions",
    [
        [4, 5],
        (4, 5),
        range(4, 6),
        np.array([4, 5]),
        read_only(np.array([4, 5])),
        np.array([4, 5], dtype=np.uint8),
        torch.tensor([4, 5], dtype=torch.int32),
        torch.tensor([4, 5], dtype=torch.uint8),
    ],
    ids=str,
)
def test_positions_may_be_any_1d_integers(positions):
    assert begun().take(positions).tolist() == [5, 6]


def test_one_position_returns_a_batch_of_one():
    assert begun().take(4).tolist() == begun().take(torch.tensor(4)).tolist() == [5]


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([0, 10], "a position is beyond the epoch, which has 10 samples. Pass positions from 0 to 9."),
        (torch.tensor([-1]), "a position is beyond the epoch"),
        ([0.5], r"the positions are \(1,\) torch.float32 on cpu. Pass a 1-d tensor of integers on cpu"),
        (torch.arange(10) < 3, r"the positions are \(10,\) torch.bool"),
        ([[0, 1], [2, 3]], r"the positions are \(2, 2\) torch.int64"),
        ("first", "the positions are a str"),
        (None, "the positions are a NoneType"),
        (torch.arange(2, device="meta"), "on meta. Pass a 1-d tensor of integers on cpu"),
    ],
)
def test_other_positions_raise(positions, message):
    with pytest.raises(DataError, match=message):
        begun().take(positions)


def test_take_before_begin_epoch_raises():
    loader = Loader(torch.arange(10), batch_size=4)
    with pytest.raises(DataError, match=r"none has begun\. Call begin_epoch\(\) first"):
        loader.take(torch.arange(2))


def growing(epoch):
    return range(4 + epoch // 2)


def test_an_epoch_of_a_different_length_raises_after_take():
    loader = Loader(torch.arange(10), batch_size=4, sampler=growing)
    loader.begin_epoch()
    loader.take(torch.arange(2))
    loader.set_epoch(1)
    loader.begin_epoch()
    loader.set_epoch(2)
    with pytest.raises(DataError, match=r"an order of 4 samples, but epoch 2 has 5\. It needs new memory"):
        loader.begin_epoch()
    untaken = Loader(torch.arange(10), batch_size=4, sampler=growing)
    assert [len(torch.cat(list(untaken))) for _ in range(4)] == [4, 4, 5, 5]


@pytest.mark.parametrize("mode", ["resident", "streaming"])
def test_a_changed_sampler_is_called_again_within_an_epoch(mode):
    numbers = [0, 1, 2, 3]
    loader = Loader(torch.arange(8), batch_size=2, sampler=numbers, mode=mode)
    assert next(iter(loader)).tolist() == [0, 1]
    numbers[:] = [7, 6, 5, 4]
    loader.load_state_dict(loader.state_dict())
    assert next(iter(loader)).tolist() == [5, 4]
    loader.set_epoch(0)
    assert next(iter(loader)).tolist() == [7, 6]


def test_take_raises_in_a_new_epoch_until_it_has_begun():
    loader = begun()
    loader.set_epoch(1)
    with pytest.raises(
        DataError, match=r"of epoch 0, but the loader is at epoch 1\. Call begin_epoch\(\) again"
    ):
        loader.take(torch.arange(2))
    loader.begin_epoch()
    assert loader.take(torch.arange(4)).tolist() == next(iter(loader)).tolist()
    loader.set_epoch(2)
    with pytest.raises(DataError, match="of epoch 1, but the loader is at epoch 2"):
        loader.take(torch.arange(2))
