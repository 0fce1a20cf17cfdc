"""Iterables: read in their order or through a buffer, resumed by skipping or by their own state."""

import json

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from flodl.core import CursorError, DataError
from flodl.data import Loader


class Numbers(IterableDataset):
    """Counts, and records how many items were read."""

    def __init__(self, count=11):
        self.count, self.reads = count, 0

    def __iter__(self):
        for number in range(self.count):
            self.reads += 1
            yield torch.tensor(number)


class Sized(Numbers):
    def __len__(self):
        return self.count


class Stateful(Numbers):
    """Has state_dict and load_state_dict."""

    def __init__(self, count=11):
        super().__init__(count)
        self.at = 0

    def __iter__(self):
        while self.at < self.count:
            self.at += 1
            self.reads += 1
            yield torch.tensor(self.at - 1)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Adopting(Numbers):
    """Keeps writing to the state that was loaded."""

    def __init__(self, count=11):
        super().__init__(count)
        self.state = {"at": 0}

    def __iter__(self):
        while self.state["at"] < self.count:
            self.state["at"] += 1
            yield torch.tensor(self.state["at"] - 1)
        self.state["at"] = 0

    def state_dict(self):
        return dict(self.state)

    def load_state_dict(self, state):
        self.state = state


class Live(Adopting):
    """Returns its internal state, and keeps writing to it."""

    def state_dict(self):
        return self.state


class Begun(Stateful):
    """Draws its order at the start, and yields random items."""

    def __iter__(self):
        order, places = torch.randperm(self.count).tolist(), super().__iter__()
        return (order[int(at)] + torch.rand(()) for at in places)


def noisy(item):
    return item + torch.rand(())


def items(batches):
    return torch.cat(list(batches)).tolist()


def test_an_iterable_keeps_its_order_and_its_partial_last_batch():
    given = Loader(Numbers(), 4)
    assert [batch.tolist() for batch in given] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert (given.epoch, given.position, given.mode, given.num_samples) == (1, 0, "streaming", None)
    assert given.reason == "an iterable is read sequentially, in its own order (shuffle_buffer= shuffles it)"
    assert items(given) == list(range(11))


def test_a_source_with_a_length_has_num_samples():
    assert len(Loader(Sized(), 4)) == 3
    assert len(Loader(Sized(), 4, drop_last=True)) == 2
    with pytest.raises(TypeError, match="is an iterable without a length"):
        len(Loader(Numbers(), 4))


def test_a_torch_loader_over_an_iterable_yields_its_batches():
    given = Loader(DataLoader(Numbers(), batch_size=4), None)
    assert [batch.tolist() for batch in given] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert given.num_samples is None


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_seed_determines_the_order_of_a_torch_loader_with_workers(num_workers):
    def epochs(seed):
        torch.manual_seed(torch.initial_seed() + 1)  # earlier draws make no difference
        data = DataLoader(range(10), batch_size=5, shuffle=True, num_workers=num_workers)
        given = Loader(data, None, seed=seed)
        return [items(given), items(given)]

    first, second = epochs(3)
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert [first, second] == epochs(3) != epochs(4)


class Random(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return index + torch.rand(())


@pytest.mark.parametrize("persistent", [False, True])
def test_random_samples_of_a_torch_loader_are_resumed_with_persistent_workers(persistent):
    def loader():
        settings = {"num_workers": 1, "persistent_workers": persistent}
        return Loader(DataLoader(Random(), batch_size=2, shuffle=True, **settings), None)

    given = loader()
    items(given)
    batches = iter(given)
    state, expected = given.state_dict(), items(batches)
    assert len(expected) == 6
    resumed = loader()
    resumed.load_state_dict(state)
    assert items(resumed) == expected


def test_drop_last_drops_the_last_batch():
    assert items(Loader(Numbers(), 4, drop_last=True)) == list(range(8))


def test_a_generator_lasts_one_epoch():
    given = Loader((torch.tensor(n) for n in range(5)), 2)
    assert items(given) == list(range(5))
    with pytest.raises(DataError, match="is an iterator and has nothing left for epoch 2"):
        list(given)


def test_an_iterator_cannot_continue_after_break_but_after_a_restart():
    given = Loader((torch.tensor(n) for n in range(5)), 2)
    next(iter(given))
    with pytest.raises(DataError, match="which cannot continue after its loop was left"):
        list(given)
    fresh = Loader((torch.tensor(n) for n in range(5)), 2)
    fresh.load_state_dict(given.state_dict())
    assert items(fresh) == [2, 3, 4]


def test_whole_batches_are_augmented_sample_by_sample():
    def shake(batch, chance):
        return batch + chance.uniform()

    first, second = Loader(iter([torch.zeros(3), torch.zeros(2)]), None, augment=shake)
    assert len({*first.tolist(), *second.tolist()}) == 5


def test_items_may_be_whole_batches():
    given = Loader(iter([torch.ones(3), torch.zeros(2)]), None, names=["x"])
    assert [batch["x"].tolist() for batch in given] == [[1, 1, 1], [0, 0]]


def test_a_buffer_shuffles_and_loses_nothing():
    given = Loader(Numbers(100), 7, shuffle_buffer=16, seed=3)
    first, second = items(given), items(given)
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second
    assert first != list(range(100))
    assert first == items(Loader(Numbers(100), 30, shuffle_buffer=16, seed=3))


@pytest.mark.parametrize(
    "settings", [{}, {"transform": noisy}, {"shuffle_buffer": 4}, {"shuffle_buffer": 4, "transform": noisy}]
)
@pytest.mark.parametrize("source", [Numbers, Stateful, Adopting, Live, Begun])
def test_a_resumed_stream_yields_exactly_the_next_batches(source, settings):
    whole = Loader(source(), 2, **settings)
    expected = [items(whole), items(whole)]
    for stop in (1, 3, 6):
        first = Loader(source(), 2, **settings)
        items(first)
        iterator = iter(first)
        head = [next(iterator) for _ in range(stop)]
        state = json.loads(json.dumps(first.state_dict()))
        second = Loader(source(), 2, **settings)
        second.load_state_dict(state)
        assert items(head + list(second)) == expected[1]


@pytest.mark.parametrize("source", [Adopting, Live])
def test_a_source_may_keep_writing_to_its_state(source):
    given = Loader(source(), 4)
    assert [items(given) for _ in range(3)] == [list(range(11))] * 3
    batches = iter(given)
    next(batches)
    state = given.state_dict()
    next(batches)
    assert state["source"] == {"at": 4}
    given.load_state_dict(state)
    for _ in range(2):
        assert items(given) == list(range(4, 11))
        given.load_state_dict(state)
    next(iter(given))
    given.rewind()
    assert items(given) == list(range(4, 11))


def test_a_source_with_a_state_dict_is_not_read_again():
    first = Loader(Stateful(), 2)
    next(iter(first))
    source = Stateful()
    second = Loader(source, 2)
    second.load_state_dict(first.state_dict())
    assert items(second) == list(range(2, 11))
    assert source.reads == 9


def test_set_epoch_of_a_source_is_called():
    class PerEpoch(Numbers):
        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            yield from (torch.tensor(self.epoch * 10 + n) for n in range(3))

    given = Loader(PerEpoch(), 3)
    assert [items(given), items(given)] == [[0, 1, 2], [10, 11, 12]]


def test_a_random_source_is_the_same_after_a_resume():
    class Random(Numbers):
        def __iter__(self):
            for _ in range(9):
                yield torch.rand(())

    whole = items(Loader(Random(), 2))
    first = Loader(Random(), 2)
    next(iter(first))
    torch.rand(7)
    second = Loader(Random(), 2)
    second.load_state_dict(first.state_dict())
    assert items(second) == whole[2:]


def test_the_global_rng_state_does_not_change():
    before = torch.get_rng_state()
    list(Loader(Numbers(), 4, transform=noisy))
    assert torch.equal(before, torch.get_rng_state())


def test_augmentation_of_a_stream_does_not_depend_on_the_batch_size():
    def shake(batch, chance):
        return batch + chance.uniform()

    assert items(Loader(Numbers(), 2, augment=shake)) == items(Loader(Numbers(), 5, augment=shake))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Loader(Numbers(), 4, sampler=[1]), "an iterable has its own order"),
        (lambda: Loader(Numbers(), 4, mode="resident"), "mode='resident' needs a source with a length"),
        (lambda: list(Loader(Numbers(0), 4)), "the source yields no batch"),
        (lambda: list(Loader(Numbers(3), 4, drop_last=True)), "the source yields no batch"),
    ],
)
def test_wrong_use_raises(make, message):
    with pytest.raises(DataError, match=message):
        make()


def test_a_source_that_became_shorter_raises():
    first = Loader(Numbers(), 4)
    iterator = iter(first)
    next(iterator)
    next(iterator)
    second = Loader(Numbers(5), 4)
    second.load_state_dict(first.state_dict())
    with pytest.raises(CursorError, match="the source ended before item 8, the position of the cursor"):
        list(second)


def test_a_list_of_batches_is_yielded_unchanged():
    batches = [(torch.ones(3), torch.zeros(3)), (torch.ones(2), torch.zeros(2))]
    given = Loader(batches, None)
    assert (len(given), given.num_samples) == (2, 2)
    for _ in range(2):
        assert [x.tolist() for x, _ in given] == [[1, 1, 1], [1, 1]]
    next(iter(given))
    again = Loader(batches, None)
    again.load_state_dict(given.state_dict())
    assert [len(x) for x, _ in again] == [2]


class SameIterator:
    """Its __iter__ returns the same iterator each time, which does not start over."""

    def __init__(self):
        self.iterator = (torch.tensor(number) for number in range(11))

    def __iter__(self):
        return self.iterator


def test_an_iterable_that_returns_the_same_iterator_again_raises():
    message = r"a SameIterator, returned the same iterator again.*Return a new iterator each time"
    given = Loader(SameIterator(), 4)
    assert len(list(given)) == 3
    with pytest.raises(DataError, match=message):
        list(given)
    given = Loader(SameIterator(), 4)
    next(iter(given))
    with pytest.raises(DataError, match=message):  # it would skip four more items
        next(iter(given))


def test_an_iterable_that_is_empty_in_the_second_epoch_raises():
    class Once:
        left = 6

        def __iter__(self):
            while self.left:
                self.left -= 1
                yield torch.tensor(self.left)

    given = Loader(Once(), 4)
    assert len(list(given)) == 2
    with pytest.raises(DataError, match=r"yields no batch in epoch 2\. Its __iter__ must return a new"):
        list(given)


class WrongLength(Numbers):
    def __init__(self, count, length):
        super().__init__(count)
        self.length = length

    def __len__(self):
        return self.length


@pytest.mark.parametrize(
    ("length", "words"), [(8, "8, but it yields more"), (20, "20, but it yielded only 11")]
)
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_wrong_length_is_reported_once(capsys, length, words, drop_last):
    given = Loader(WrongLength(11, length), 4, drop_last=drop_last)
    for _ in range(2):
        assert len([*map(len, given)]) == 2 + (not drop_last)
    told = capsys.readouterr().err
    assert told.count("the length of the source is") == 1
    assert words in told


def test_a_right_length_is_not_reported(capsys):
    for drop_last in (False, True):
        list(Loader(Sized(), 4, drop_last=drop_last))
    list(Loader(Sized(), 4, shuffle_buffer=3))
    assert capsys.readouterr().err == ""


def test_a_loader_can_be_resumed_beyond_a_wrong_length():
    given = Loader(WrongLength(11, 5), 4)
    batches = iter(given)
    next(batches), next(batches)
    again = Loader(WrongLength(11, 5), 4)
    again.load_state_dict(given.state_dict())
    assert [batch.tolist() for batch in again] == [[8, 9, 10]]
