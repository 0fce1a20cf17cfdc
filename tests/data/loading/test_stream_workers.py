"""An iterable read by several workers: every sample once, in torch's order, resumed exactly."""

import json
import os

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from flodl.core import CursorError, DataError
from flodl.data import Loader

# Torch warns about more workers than processors; three parts are worth testing.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")


class Shared(IterableDataset):
    """Counts; each worker yields its own numbers, the first ones more than the others."""

    def __init__(self, count=23):
        self.count, self.epoch = count, 0

    def __iter__(self):
        info = get_worker_info()
        number, step = (0, 1) if info is None else (info.id, info.num_workers)
        for value in range(self.count):
            if value * value % (2 * step - 1) % step == number:
                yield torch.tensor(1000 * self.epoch + value)

    def set_epoch(self, epoch):
        self.epoch = epoch


class Stateful(Shared):
    """Has a state_dict; a part is the numbers congruent to its index."""

    def __init__(self, count=23):
        super().__init__(count)
        self.at = self.reads = 0

    def __iter__(self):
        info = get_worker_info()
        number, step = (0, 1) if info is None else (info.id, info.num_workers)
        while self.at * step + number < self.count:
            self.at += 1
            self.reads += 1
            yield torch.tensor([1000 * self.epoch + (self.at - 1) * step + number, self.reads])
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Selfish(IterableDataset):
    """Never reads get_worker_info()."""

    def __iter__(self):
        yield from torch.arange(9)


class Broken(Shared):
    def __iter__(self):
        for value in super().__iter__():
            if value == 9:
                raise ZeroDivisionError("nine")
            yield value


class Process(Shared):
    """Yields the id of the process that reads it."""

    def __iter__(self):
        assert get_worker_info().id >= 0
        yield torch.tensor(os.getpid())


def noisy(item):
    return item + torch.rand(())


def shaken(batch, chance):
    return batch + chance.uniform()


def lists(batches):
    return [batch.tolist() for batch in batches]


@pytest.fixture
def loader():
    """Make loaders whose workers end with the test."""
    made = []

    def make(*arguments, **settings):
        made.append(Loader(*arguments, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_batches_are_those_of_torch_and_every_sample_comes_once(loader, num_workers, drop_last):
    settings = {"num_workers": num_workers, "drop_last": drop_last}
    given = loader(Shared(), 3, **settings)
    assert lists(given) == lists(DataLoader(Shared(), 3, **settings))
    second = [value for batch in lists(given) for value in batch]
    assert (given.epoch, given.mode, given.position) == (2, "streaming", 0)
    if not drop_last:
        assert sorted(second) == list(range(1000, 1023))


@pytest.mark.parametrize("settings", [{}, {"transform": noisy, "shuffle_buffer": 4}])
def test_one_worker_yields_the_same_as_none(loader, settings):
    assert lists(loader(Shared(), 4, num_workers=1, **settings)) == lists(loader(Shared(), 4, **settings))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{}, {"transform": noisy}, {"shuffle_buffer": 4}, {"augment": shaken, "drop_last": True}]
)
@pytest.mark.parametrize("num_workers", [2, 3])
def test_a_resumed_loader_yields_exactly_the_next_batches(loader, num_workers, settings):
    settings = {"num_workers": num_workers, "seed": 5, **settings}
    whole = loader(Shared(), 2, **settings)
    whole.set_epoch(1)
    cursors, expected = [], []
    for batch in whole:
        expected.append(batch.tolist())
        cursors.append(json.loads(json.dumps(whole.state_dict())))
    assert expected
    for stop in (0, 2, 3, len(expected) - 2, len(expected) - 1):
        second = loader(Shared(), 2, **settings)
        second.load_state_dict(cursors[stop])
        assert lists(second) == expected[stop + 1 :]
        assert second.epoch == 2


def test_a_source_with_a_state_dict_is_not_read_again(loader):
    first = loader(Stateful(), 2, num_workers=2)
    batches = iter(first)
    head = [next(batches) for _ in range(5)]
    second = loader(Stateful(), 2, num_workers=2)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    tail = list(second)
    assert sorted(torch.cat(head + tail)[:, 0].tolist()) == list(range(23))
    assert min(batch[:, 1].min() for batch in tail) == 1, "reading began where it had ended"
    assert max(batch[:, 1].max() for batch in tail) < 8


def test_the_batch_size_may_change_within_an_epoch(loader):
    first = loader(Shared(), 2, num_workers=2)
    batches = iter(first)
    head = [next(batches) for _ in range(3)]
    second = loader(Shared(), 5, num_workers=2)
    second.load_state_dict(first.state_dict())
    assert sorted(torch.cat(head + list(second)).tolist()) == list(range(23))


def test_an_interrupted_loop_continues_with_the_same_workers(loader):
    given = loader(Shared(), 2, num_workers=2)
    head = [next(given.with_positions()).batch for _ in range(3)]
    rest = [item.batch for item in given.with_positions()]
    assert sorted(torch.cat(head + rest).tolist()) == list(range(23))
    pids = loader(Process(), 1, num_workers=2)
    assert lists(pids) == lists(pids)


def test_items_may_be_whole_batches(loader):
    given = loader(Stateful(), None, num_workers=2)
    assert [row[0].item() for row in given] == list(range(23))


def test_the_number_of_batches_is_unknown(loader):
    class Sized(Shared):
        def __len__(self):
            return self.count

    assert len(loader(Sized(), 2, num_workers=1)) == 12
    with pytest.raises(TypeError, match="each has its own last batch"):
        len(loader(Sized(), 2, num_workers=2))


def test_a_source_that_does_not_divide_itself_raises(loader):
    with pytest.raises(DataError, match=r"(?s)does not divide itself among 2 workers.*num_workers=1"):
        list(loader(Selfish(), 2, num_workers=2))
    assert lists(loader(Selfish(), 5, num_workers=1)) == [[0, 1, 2, 3, 4], [5, 6, 7, 8]]


def test_an_error_in_a_worker_keeps_its_message(loader):
    with pytest.raises(ZeroDivisionError, match="nine"):
        list(loader(Broken(), 2, num_workers=2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Loader(iter([1, 2]), 2, num_workers=2),
            "num_workers=2 with an iterator, which only one reader can use",
        ),
        (
            lambda: Loader(DataLoader(Shared(), 2), None, num_workers=1),
            "num_workers=1 with a DataLoader, which has its own workers",
        ),
    ],
)
def test_sources_that_several_workers_cannot_read_raise(make, message):
    with pytest.raises(DataError, match=message):
        make()


def test_an_empty_source_raises(loader):
    with pytest.raises(DataError, match="the source yields no batch"):
        list(loader(Shared(0), 4, num_workers=2))


def test_resuming_with_a_different_number_of_workers_raises(loader):
    first = loader(Shared(), 2, num_workers=2)
    next(iter(first))
    with pytest.raises(
        CursorError, match=r"by 2 workers'.*by 3 workers'.*same shuffle=, sampler= and num_workers="
    ):
        loader(Shared(), 2, num_workers=3).load_state_dict(first.state_dict())


def test_a_source_that_became_shorter_raises(loader):
    first = loader(Stateful(40), 4, num_workers=2, shuffle_buffer=2)
    batches = iter(first)
    for _ in range(8):
        next(batches)
    second = loader(Stateful(20), 4, num_workers=2, shuffle_buffer=2)
    second.load_state_dict(first.state_dict())
    with pytest.raises(CursorError, match="the source ended before item 16"):
        list(second)


def test_the_global_rng_state_does_not_change(loader):
    before = torch.get_rng_state()
    list(loader(Shared(), 4, transform=noisy, num_workers=2))
    assert torch.equal(before, torch.get_rng_state())
