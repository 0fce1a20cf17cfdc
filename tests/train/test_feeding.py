"""Data that change between two calls, lists of batches, and loaders that are only borrowed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flodl import Loader, Trainer
from flodl.core import CursorError, DataError
from flodl.data import Compose, RandomFlip

X = torch.arange(20.0).view(20, 1)


def trainer(step_fn, **settings):
    return Trainer(
        nn.Linear(1, 1),
        step_fn,
        optimizer=lambda groups: torch.optim.SGD(groups, lr=0.0),
        device="cpu",
        monitor=False,
        tier="eager",
        **settings,
    )


def mean_of(model, x):
    return model(x).sum() * 0 + x.mean()


def test_data_that_were_changed_since_are_read_as_they_are():
    table = {"x": torch.zeros(8, 1)}
    one = trainer(lambda model, batch: mean_of(model, batch["x"]))
    assert one.evaluate(table)["loss"] == 0.0
    table["x"] = torch.ones(8, 1)
    assert one.evaluate(table)["loss"] == 1.0
    assert one.fit(table, epochs=1, batch_size=4).metrics["loss"] == 1.0
    table["x"] = torch.full((8, 1), 2.0)
    assert one.fit(table, epochs=2, batch_size=4).metrics["loss"] == 2.0
    rows = [(torch.zeros(1),)] * 4
    other = trainer(mean_of)
    assert other.evaluate(rows)["loss"] == 0.0
    rows += [(torch.ones(1),)] * 4
    assert other.evaluate(rows)["loss"] == 0.5


def test_a_list_of_batches_is_evaluated_batch_by_batch_where_it_is_trained_so():
    batches, shapes = [(X[at : at + 4],) for at in range(0, 20, 4)], set()

    def spread(model, x):
        shapes.add(tuple(x.shape))
        return model(x).sum() * 0 + (x - x.mean(0)).square().mean()

    found = trainer(spread).fit(batches, epochs=1, eval_data=batches).metrics
    assert found["eval_loss"] == found["loss"]
    assert shapes == {(4, 1)}


def test_an_evaluation_leaves_a_loader_where_it_stands():
    given, alone = Loader(X, 5, seed=1), Loader(X, 5, seed=1)
    one = trainer(mean_of)
    for _ in range(3):
        assert [b.tolist() for b in given] == [b.tolist() for b in alone]
        one.evaluate(given)
    next(iter(given))
    one.evaluate(given)
    assert (given.epoch, given.position) == (3, 5)


def test_an_augmentation_in_place_does_not_reach_a_list_of_batches():
    batches = [(torch.zeros(4, 2),) for _ in range(3)]
    given = Loader(batches, None, augment=lambda batch: (batch[0].add_(1),))
    for _ in range(3):
        assert [float(x[0, 0]) for (x,) in given] == [1.0, 1.0, 1.0]


class Growing(torch.utils.data.Sampler):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(range(10 + 3 * self.epoch))

    def __len__(self):
        return 10 + 3 * self.epoch


def test_a_sampler_whose_length_follows_the_epoch_is_resumed():
    given = Loader(torch.arange(23), 4, sampler=Growing())
    list(given)
    next(iter(given))
    again = Loader(torch.arange(23), 4, sampler=Growing())
    again.load_state_dict(given.state_dict())
    assert [b.tolist() for b in again] == [b.tolist() for b in given]


def torch_loader(**settings):
    known = {"batch_size": 4, "shuffle": True}
    return DataLoader(TensorDataset(X[:12]), **{**known, **settings})


@pytest.mark.parametrize("change", [{"batch_size": 5}, {"shuffle": False}, {"num_workers": 1}], ids=str)
def test_a_cursor_of_a_torch_loader_with_other_settings_is_refused(change):
    given = Loader(torch_loader(), None)
    next(iter(given))
    with pytest.raises(CursorError, match="order='that of a DataLoader"):
        Loader(torch_loader(**change), None).load_state_dict(given.state_dict())


def test_workers_that_stay_do_not_change_the_order_of_a_torch_loader():
    def epochs(given):
        found = [[x.flatten().tolist() for (x,) in given] for _ in range(3)]
        given.close()
        return found

    stays = {"num_workers": 1, "persistent_workers": True}
    whole = epochs(Loader(torch_loader(**stays), None))
    later = Loader(torch_loader(**stays), None)
    later.set_epoch(1)
    assert epochs(later)[:2] == whole[1:]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Loader((X, X), 4, names=("a", "a")), "each of them once"),
        (lambda: Loader((X, X), 4, names="ab"), "Give a list of names"),
        (lambda: list(Loader(X, 4, sampler=[0.5])), "no number of a sample"),
        (lambda: Loader(X, 4, augment="x"), "augment='x'"),
        (lambda: Loader(X, 4, augment=RandomFlip), "Give a function augment"),
        (lambda: Compose([3]), "3 is no augmentation"),
    ],
)
def test_wrong_settings_are_refused_in_words(make, told):
    with pytest.raises(DataError, match=told):
        make()


def test_a_list_and_a_module_may_be_augmentations():
    images = torch.arange(16.0).view(4, 1, 2, 2)
    assert Compose([RandomFlip(), RandomFlip()]).parts[1].p == 0.5
    given = next(iter(Loader(images, 4, shuffle=False, augment=[nn.Identity(), nn.Flatten()])))
    assert given.shape == (4, 4)
