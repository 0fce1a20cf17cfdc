"""Cursors of samplers that depend on the epoch and of torch's DataLoaders."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from flodl.core import CursorError
from flodl.data import Loader

X = torch.arange(12.0).view(12, 1)


class Growing(torch.utils.data.Sampler):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(range(10 + 3 * self.epoch))

    def __len__(self):
        return 10 + 3 * self.epoch


def test_a_sampler_whose_length_depends_on_the_epoch_is_resumed():
    given = Loader(torch.arange(23), 4, sampler=Growing())
    list(given)
    next(iter(given))
    again = Loader(torch.arange(23), 4, sampler=Growing())
    again.load_state_dict(given.state_dict())
    assert [b.tolist() for b in again] == [b.tolist() for b in given]


def torch_loader(**settings):
    known = {"batch_size": 4, "shuffle": True}
    return DataLoader(TensorDataset(X), **{**known, **settings})


@pytest.mark.parametrize("change", [{"batch_size": 5}, {"shuffle": False}, {"num_workers": 1}], ids=str)
def test_a_cursor_of_a_torch_loader_with_different_settings_raises(change):
    given = Loader(torch_loader(), None)
    next(iter(given))
    with pytest.raises(CursorError, match="order='that of a DataLoader"):
        Loader(torch_loader(**change), None).load_state_dict(given.state_dict())


def test_persistent_workers_do_not_change_the_order_of_a_torch_loader():
    def epochs(given):
        found = [[x.flatten().tolist() for (x,) in given] for _ in range(3)]
        given.close()
        return found

    stays = {"num_workers": 1, "persistent_workers": True}
    whole = epochs(Loader(torch_loader(**stays), None))
    later = Loader(torch_loader(**stays), None)
    later.set_epoch(1)
    assert epochs(later)[:2] == whole[1:]
