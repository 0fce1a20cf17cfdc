"""An order that is too long to be stored is computed on demand, and is the same in every mode."""

import json
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset
from torch.utils.data import SequentialSampler as TorchSequentialSampler

from flodl.core import DataError
from flodl.data import Loader
from flodl.data.sampling import samplers
from flodl.data.sampling.lazy_order import LazyOrder, Permutation
from flodl.data.sampling.order import MAX_SORTED, permutation

HUGE = 10**12


class Indices(Dataset):
    """The index of each sample, for any number of samples."""

    def __init__(self, count=HUGE):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        assert 0 <= index < self.count
        return torch.tensor(index)


@pytest.fixture
def few_are_many(monkeypatch):
    """Compute every order on demand."""
    monkeypatch.setattr(samplers, "MAX_SORTED", 4)


@given(st.integers(1, 700), st.integers(0, 2**64), st.integers(0, 1000))
def test_every_sample_occurs_once(count, seed, epoch):
    indices = Permutation.of(count, seed=seed, epoch=epoch)(torch.arange(count))
    assert indices.sort().values.tolist() == list(range(count))


def test_neighbors_are_not_correlated():
    count, drawn = HUGE + 7, 100_000
    part = Permutation.of(count, seed=1, epoch=2)(torch.arange(drawn)).double() / count
    assert abs(part.mean() - 0.5) < 5 * (1 / 12 / drawn) ** 0.5
    for other in (part.roll(1), torch.arange(drawn).double(), (torch.arange(drawn) % 2).double()):
        assert abs(torch.corrcoef(torch.stack([part, other]))[0, 1]) < 5 * drawn**-0.5


def test_the_order_never_changes_between_versions():
    # A cursor saved by one version must mean the same samples in the next.
    assert next(iter(Loader(Indices(), 3, seed=3))).tolist() == FROZEN_ORDER
    assert MAX_SORTED == 2**24


FROZEN_ORDER = [648864081549, 311088307370, 530195588548]


def test_blocks_do_not_change_the_order():
    whole = LazyOrder(1000, Permutation.of(1000, seed=0, epoch=0), torch.device("cpu"))
    parts = LazyOrder(1000, Permutation.of(1000, seed=0, epoch=0), torch.device("cpu"))
    expected = whole.stored()
    assert torch.equal(torch.cat([parts[at : min(at + 7, 1000)] for at in range(0, 1000, 7)]), expected)
    assert parts[990:1000].tolist() == expected[990:].tolist()
    assert parts[0:3].tolist() == expected[:3].tolist()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"shuffle": False},
        {"drop_last": True},
        {"sampler": range(HUGE)},
        {"sampler": lambda epoch: range(HUGE)},
        {"sampler": TorchSequentialSampler(Indices())},
    ],
    ids=["shuffled", "in order", "drop_last", "range", "function", "torch sampler"],
)
def test_a_loader_of_10_to_the_12_samples_starts_resumes_and_ends_at_once(settings):
    began = time.perf_counter()
    loader = Loader(Indices(), 3, **settings)
    first = next(iter(loader))
    assert len(loader) == HUGE // 3 + (not settings.get("drop_last"))
    assert first.tolist() == [0, 1, 2] or not ({"shuffle", "sampler"} & set(settings))
    state = json.loads(json.dumps(loader.state_dict()))

    def batches_from(position, count):
        resumed = Loader(Indices(), 3, **settings)
        resumed.load_state_dict({**state, "position": position})
        found = [batch.tolist() for batch, _ in zip(resumed, range(count))]
        return found, resumed.epoch

    middle = HUGE // 2
    found, _ = batches_from(middle, 4)
    assert batches_from(middle + 3, 3)[0] == found[1:]
    # 10**12 is one more than a multiple of three.
    found, epoch = batches_from(HUGE - 4, 5)
    assert [len(batch) for batch in found] == ([3] if settings.get("drop_last") else [3, 1])
    assert epoch == 1
    assert time.perf_counter() - began < 2  # milliseconds, on a machine with nothing else to do


def test_resident_data_are_not_enumerated_either():
    x = torch.zeros(1).expand(HUGE)
    loader = Loader(x, 4, augment=lambda batch, chance: batch + chance.integers(1000))
    assert loader.mode == "resident"
    first = next(iter(loader))
    loader.rewind()
    loader.begin_epoch()
    assert torch.equal(loader.take(torch.arange(4)), first)
    assert torch.equal(loader.take([2]), first[2:3])
    for wrong in ([-1], [HUGE]):
        with pytest.raises(DataError, match=r"a position is beyond the epoch, which has 1000000000000"):
            loader.take(wrong)


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize(
    "settings", [{}, {"shuffle": False}, {"sampler": lambda epoch: range(epoch % 2, 26, 2)}]
)
def test_modes_and_take_have_the_same_order(settings):
    data, more = torch.arange(26), {"augment": lambda batch, chance: batch * 1000 + chance.integers(1000)}

    def epochs(**mode):
        loader = Loader(data, 4, **settings, **more, **mode)
        return [torch.cat(list(loader)).tolist() for _ in range(3)]

    resident = epochs(mode="resident")
    assert resident == epochs(mode="streaming")
    loader = Loader(data, 4, **settings, **more)
    for epoch in range(3):
        loader.set_epoch(epoch)
        loader.begin_epoch()
        assert loader.take(torch.arange(len(resident[epoch]))).tolist() == resident[epoch]


@pytest.mark.slow
@pytest.mark.usefixtures("few_are_many")
def test_workers_have_the_same_order():
    alone, workers = Loader(Indices(50), 4), Loader(Indices(50), 4, num_workers=2)
    assert [batch.tolist() for batch in alone] == [batch.tolist() for batch in workers]
    workers.close()


def test_an_older_cursor_keeps_its_sorted_order(few_are_many):
    data = torch.arange(20)
    current = Loader(data, 4, seed=1)
    state = current.state_dict()
    assert state["order"] == "RandomSampler, on demand"
    older = {**state, "order": "RandomSampler", "position": 8}
    for mode in ("resident", "streaming"):
        resumed = Loader(data, 4, mode=mode)
        resumed.load_state_dict(older)
        rest = torch.cat(list(resumed)).tolist()
        assert rest == permutation(20, seed=1, epoch=0)[8:].tolist()
        assert resumed.state_dict()["order"] == "RandomSampler"
        assert torch.cat(list(resumed)).tolist() == permutation(20, seed=1, epoch=1).tolist()
        resumed.load_state_dict(state)
        assert torch.cat(list(resumed)).tolist() == torch.cat(list(Loader(data, 4, seed=1))).tolist()


def test_more_samples_than_can_be_counted_raise():
    with pytest.raises(DataError, match=r"can order up to 2\*\*62"):
        next(iter(Loader(Indices(2**63 - 1), 4)))
