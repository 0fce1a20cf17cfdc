"""Samplers: which samples, in what order, as a function of seed and epoch."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, TensorDataset, WeightedRandomSampler
from torch.utils.data import RandomSampler as TorchRandomSampler

from flodl.core import DataError
from flodl.data import Loader, RandomSampler, SequentialSampler, WeightedSampler

DATA = torch.arange(20)
CPU = torch.device("cpu")


def epochs(count=2, **settings):
    loader = Loader(DATA, batch_size=6, **settings)
    return [torch.cat(list(loader)).tolist() for _ in range(count)]


def test_shuffle_selects_the_default_sampler():
    assert epochs(shuffle=False) == [DATA.tolist()] * 2
    assert epochs(shuffle=True) == epochs(sampler=RandomSampler(), shuffle=False)
    assert epochs(sampler=SequentialSampler()) == epochs(shuffle=False)


def test_weights_determine_how_often_a_sample_is_drawn():
    weights = torch.zeros(20)
    weights[3], weights[7] = 1.0, 9.0
    loader = Loader(DATA, batch_size=100, sampler=WeightedSampler(weights, num_samples=5000))
    assert loader.num_samples == 5000
    drawn = torch.cat(list(loader)).bincount(minlength=20)
    assert drawn[3] + drawn[7] == 5000
    assert abs(int(drawn[7]) - 4500) < 110


def test_a_batch_sampler_raises():
    with pytest.raises(
        DataError, match=r"an integer\. Return single indices; the loader groups them into batches"
    ):
        epochs(sampler=BatchSampler(range(20), 4, drop_last=False))


def test_without_replacement_a_sample_is_drawn_at_most_once():
    weights = [1.0] * 10 + [0.0] * 10
    (first,), (again,) = (epochs(1, sampler=WeightedSampler(weights, replacement=False)) for _ in range(2))
    assert sorted(first) == list(range(10))
    assert first == again


def test_without_replacement_heavy_samples_come_first():
    weights = [100.0] * 5 + [1.0] * 15
    sampler = WeightedSampler(weights, num_samples=5, replacement=False)
    heavy = [sum(index < 5 for index in order) for order in epochs(50, sampler=sampler)]
    assert sum(heavy) > 0.9 * 5 * 50


def test_weighted_epochs_differ_and_repeat():
    sampler = WeightedSampler(torch.rand(20, generator=torch.Generator().manual_seed(0)) + 0.1)
    first, second = epochs(sampler=sampler)
    assert first != second
    assert [first, second] == epochs(sampler=sampler)


@pytest.mark.parametrize(
    "sampler",
    [
        lambda epoch: [epoch, 5, 3],
        lambda seed, epoch: torch.tensor([epoch, 5, 3]),
        lambda *, epoch: (epoch, 5, 3),
    ],
)
def test_a_function_of_the_epoch_is_a_sampler(sampler):
    assert epochs(sampler=sampler) == [[0, 5, 3], [1, 5, 3]]


def test_a_function_may_return_epochs_of_unequal_length():
    loader = Loader(DATA, batch_size=2, sampler=lambda epoch: range(4 + 2 * epoch))
    assert (len(loader), loader.num_samples) == (2, 4)
    list(loader)
    assert (len(loader), loader.num_samples) == (3, 6)
    saved = loader.state_dict()
    fresh = Loader(DATA, batch_size=2, sampler=lambda epoch: range(4 + 2 * epoch))
    fresh.load_state_dict(saved)
    assert torch.cat(list(fresh)).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_list_is_a_sampler():
    assert epochs(sampler=[4, 4, 2]) == [[4, 4, 2]] * 2


@pytest.mark.parametrize(
    "make", [lambda: TorchRandomSampler(DATA), lambda: WeightedRandomSampler([0.5] * 20, 12)]
)
def test_a_torch_sampler_returns_the_same_epochs_each_time(make):
    first = epochs(3, sampler=make())
    torch.rand(1)
    assert first == epochs(3, sampler=make())
    assert first[0] != first[1]


def test_a_torch_sampler_does_not_change_the_global_generator():
    before = torch.get_rng_state()
    epochs(sampler=TorchRandomSampler(DATA))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WeightedSampler([1.0, -1.0]), "a weight is negative, infinite or NaN"),
        (lambda: WeightedSampler([0.0, 0.0]), "every weight is 0"),
        (
            lambda: WeightedSampler([1.0, 0.0], num_samples=2, replacement=False),
            "num_samples=2 with 1 weights",
        ),
        (lambda: list(Loader(DATA, 4, sampler=WeightedSampler([1.0]))), "1 weights for 20 samples"),
        (
            lambda: list(Loader(DATA, 4, sampler=[1, 20])),
            "index 20 for 20 samples. Return indices from 0 to 19.",
        ),
        (lambda: list(Loader(DATA, 4, sampler=[-1])), "index -1 for 20 samples"),
        (lambda: Loader(DATA, 4, sampler=lambda epoch: []), "Return a non-empty list of sample indices"),
        (lambda: list(Loader(DATA, 4, sampler=iter([1, 2]))), "the sampler is an iterator"),
        (lambda: Loader(DATA, 4, sampler=3), "sampler=3 is an int"),
        (
            lambda: Loader(DATA, 4, sampler=DATA > 3),
            r"a mask of 20 .*Use sampler=mask\.nonzero\(\)\.flatten",
        ),
        (lambda: Loader(DATA, 4, sampler=DATA.numpy() > 3), r"a mask of 20 .*numpy\.flatnonzero\(mask\)"),
        (lambda: Loader(DATA, 4, sampler=[True, False]), r"a mask of 2 .*enumerate\(mask\) if selected"),
        (lambda: Loader(DATA, 4, sampler=lambda epoch: epoch < DATA), "the sampler is a mask of 20"),
    ],
)
def test_wrong_samplers_raise(make, message):
    with pytest.raises(DataError, match=message):
        make()


def test_the_advice_for_a_mask_works():
    mask = DATA % 7 == 3
    for numbers in (
        mask.nonzero().flatten(),
        np.flatnonzero(mask.numpy()),
        [number for number, wanted in enumerate(mask.tolist()) if wanted],
    ):
        assert epochs(1, sampler=numbers) == [[3, 10, 17]]


def test_a_sampler_with_its_own_generator_raises():
    own = torch.utils.data.RandomSampler(range(8), generator=torch.Generator())
    with pytest.raises(DataError, match="its own generator"):
        Loader(torch.arange(8), 2, sampler=own)
    source = torch.utils.data.DataLoader(range(8), shuffle=True, generator=torch.Generator())
    with pytest.raises(DataError, match="its own generator"):
        Loader(source, None)


class Shuffling:
    """Draws each order from its own generator."""

    def __init__(self):
        self.random, self.asked = random.Random(3), 0

    def __iter__(self):
        self.asked += 1
        return iter(self.random.sample(range(20), 20))

    def __len__(self):
        return 20


class ByEpoch(Shuffling):
    def set_epoch(self, epoch):
        self.random = random.Random(epoch)


def test_a_sampler_with_its_own_random_state_raises():
    with pytest.raises(
        DataError, match=r"two different orders for epoch 0: .*set_epoch\(epoch\) or as a function"
    ):
        epochs(sampler=Shuffling())
    own = Shuffling()
    with pytest.raises(DataError, match="two different orders for epoch 0"):
        epochs(sampler=lambda epoch: own)


def test_a_sampler_that_counts_its_epochs_raises():
    class Counting:
        epoch = 0

        def __iter__(self):
            self.epoch += 1
            return iter(range(self.epoch, 20))

    with pytest.raises(DataError, match="two different orders for epoch 0"):
        epochs(sampler=Counting())


def test_a_pure_sampler_is_called_twice_only_in_the_first_epoch():
    sampler = ByEpoch()
    assert epochs(3, sampler=sampler) == epochs(3, sampler=ByEpoch())
    assert sampler.asked == 4


def test_a_function_that_draws_from_the_global_generators_is_pure():
    def drawn(epoch):
        return [*random.sample(range(20), 3), *torch.randperm(20).tolist(), np.random.randint(20)]

    assert epochs(sampler=drawn) == epochs(sampler=drawn)


class Reporting:
    """A sampler of the user's that returns what it was given."""

    def __init__(self, indices, length=None):
        self.indices, self.reported = indices, length

    def order(self, count, *, seed, epoch, device):
        return self.indices

    def length(self, count):
        return len(self.indices) if self.reported is None else self.reported


@pytest.mark.parametrize("mode", ["resident", "streaming"])
@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (Reporting(torch.tensor([0, -1])), "returned index -1 for 20 samples"),
        (Reporting(torch.tensor([0, 20])), "returned index 20 for 20 samples"),
        (Reporting(torch.tensor([0.0, 1.0])), "returned .* torch.float32"),
        (Reporting([0, 1]), "returned a list for epoch 0. Return a 1-d tensor"),
        (Reporting(torch.arange(4), length=6), "returned 4 indices for epoch 0, but its length is 6"),
    ],
)
def test_what_a_sampler_of_the_user_returns_is_checked(sampler, message, mode):
    with pytest.raises(DataError, match=message):
        epochs(sampler=sampler, mode=mode)


def test_a_torch_sampler_with_a_wrong_length_raises():
    class Short(TorchRandomSampler):
        def __len__(self):
            return 7

    with pytest.raises(DataError, match=r"returned 20 indices for epoch 0, but its length is 7"):
        epochs(sampler=Short(DATA))


def test_weights_that_do_not_match_raise_when_the_loader_is_created():
    with pytest.raises(DataError, match="19 weights for 20 samples"):
        Loader(DATA, 4, sampler=WeightedSampler([1.0] * 19))


def test_a_weighted_sampler_of_torch_needs_a_weight_for_each_sample():
    of_classes, of_samples = (WeightedRandomSampler([1.0, 5.0] * count, 20) for count in (1, 10))
    assert len(epochs(sampler=of_samples)[0]) == 20
    with pytest.raises(DataError, match=r"2 weights for 20 samples.*the first of them only.*class_weights\["):
        Loader(DATA, batch_size=6, sampler=of_classes)
    dataset = TensorDataset(DATA)
    assert len(list(Loader(DataLoader(dataset, 10, sampler=of_samples), None))) == 2
    with pytest.raises(DataError, match="2 weights for 20 samples"):
        Loader(DataLoader(dataset, 10, sampler=of_classes), None)
