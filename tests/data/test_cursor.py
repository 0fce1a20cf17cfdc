"""Cursors of samplers that depend on the epoch and of torch's DataLoaders."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from flodl.core import CursorError
from flodl.data import Loader
from flodl.data.sampling.order import permutation

from .small_loaders import (
    AUGMENT,
    COUNT,
    IMAGES,
    LABELS,
    SETTINGS,
    assert_same,
    everything,
    loader,
)

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
    batches = iter(given)
    next(batches)
    again = Loader(torch.arange(23), 4, sampler=Growing())
    again.load_state_dict(given.state_dict())
    assert [b.tolist() for b in again] == [b.tolist() for b in batches]


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


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))
def test_a_resumed_loader_yields_exactly_the_next_batches(settings):
    whole = everything(loader(**settings), 2)
    per_epoch = len(loader(**settings))
    for stopped in (1, per_epoch - 1, per_epoch, per_epoch + 2):
        first = loader(**settings)
        seen = []
        while len(seen) < stopped:
            for batch in first:
                seen.append(batch)
                if len(seen) == stopped:
                    break
        state = json.loads(json.dumps(first.state_dict()))
        first.close()
        resumed = loader(**settings)
        resumed.load_state_dict(state)
        rest = []
        while resumed.epoch < 2:
            rest += list(resumed)
        resumed.close()
        assert_same(seen + rest, whole)


def test_the_cursor_counts_yielded_batches_not_prefetched_ones():
    given = loader(mode="streaming", num_workers=2)
    iterator = iter(given)
    next(iterator)
    next(iterator)
    assert given.state_dict()["position"] == given.position == 8
    given.close()


def test_the_state_after_the_last_batch_ends_its_epoch():
    given = loader(batch_size=COUNT)
    iterator = iter(given)
    next(iterator)
    state = given.state_dict()
    assert (state["epoch"], state["position"]) == (0, COUNT)
    resumed = loader(batch_size=COUNT)
    resumed.load_state_dict(state)
    assert list(resumed) == []
    assert (resumed.epoch, resumed.position) == (1, 0)


def test_the_batch_size_may_change_when_resuming():
    first = loader(augment=AUGMENT)
    iterator = iter(first)
    head = [next(iterator), next(iterator)]
    second = loader(augment=AUGMENT, batch_size=9)
    second.load_state_dict(first.state_dict())
    images = torch.cat([x for x, _ in head + list(second)])
    assert torch.equal(images, torch.cat([x for x, _ in loader(augment=AUGMENT)]))


@given(
    count=st.integers(1, 40),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    mode=st.sampled_from(["resident", "streaming"]),
)
def test_any_sequence_of_batch_sizes_yields_the_samples_in_order(count, sizes, mode):
    data = torch.arange(count)
    state, seen = Loader(data, 1).state_dict(), []
    for size in sizes:  # each run reads one batch, with a different batch size
        run = Loader(data, size, mode=mode)
        run.load_state_dict(state)
        for batch in run:
            seen += batch.tolist()
            break
        state = run.state_dict()
        if run.epoch:
            break
    assert seen == permutation(count, seed=0, epoch=0).tolist()[: len(seen)]
    assert len(seen) == min(count, sum(sizes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"seed": 6},
            "the cursor was saved with seed=5, but this loader has 6. Use the same seed.",
        ),
        ({"shuffle": False}, "order='RandomSampler', but this loader has 'SequentialSampler'"),
        ({"source": (IMAGES[:9], LABELS[:9])}, "num_samples=26, but this loader has 9"),
    ],
)
def test_a_cursor_of_a_different_loader_raises(changes, message):
    settings = {"source": (IMAGES, LABELS), "batch_size": 4, "seed": 5, **changes}
    with pytest.raises(CursorError, match=message):
        Loader(**settings).load_state_dict(loader().state_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position": 27}, "the cursor is at sample 27 of 26"),
        ({"position": -1}, "position=-1; expected an integer >= 0"),
        ({"epoch": 1.5}, "epoch=1.5"),
        ({"version": 9}, "the state has version 9; this version of flodl reads 1"),
    ],
)
def test_a_damaged_cursor_raises_and_changes_nothing(change, message):
    given = loader()
    given.set_epoch(2)
    with pytest.raises(CursorError, match=message):
        given.load_state_dict({**given.state_dict(), **change})
    assert (given.epoch, given.position) == (2, 0)
    with pytest.raises(CursorError, match=r"Pass the state_dict\(\)"):
        given.load_state_dict({"epoch": 1})


def test_rewind_returns_to_the_start_of_the_epoch():
    loader = Loader(torch.arange(10), 2, seed=1)
    first = next(iter(loader))
    loader.rewind()
    assert torch.equal(next(iter(loader)), first)
    loader.set_epoch(3)
    third = [batch.tolist() for batch in loader]
    loader.set_epoch(3)
    next(iter(loader))
    loader.rewind()
    assert [batch.tolist() for batch in loader] == third


def test_rewind_returns_to_the_loaded_cursor():
    loader = Loader(torch.arange(10), 2, seed=1)
    batches = iter(loader)
    next(batches), next(batches)
    state, expected = loader.state_dict(), next(batches)
    other = Loader(torch.arange(10), 2, seed=1)
    other.load_state_dict(state)
    next(iter(other))
    other.rewind()
    assert torch.equal(next(iter(other)), expected)


@pytest.mark.parametrize("changes", [{"batch_size": 8}, {"drop_last": True}])
def test_a_cursor_of_a_torch_loader_with_other_batches_names_the_settings(changes):
    def loader_of(**settings):
        return Loader(DataLoader(TensorDataset(IMAGES), **{"batch_size": 4, **settings}), batch_size=None)

    count = len(loader_of(**changes))
    with pytest.raises(CursorError) as caught:
        loader_of(**changes).load_state_dict(loader_of().state_dict())
    assert str(caught.value).startswith(
        f"the cursor was saved with 7 batches per epoch, but this loader has {count}. "
        "Use the same data, batch_size and drop_last."
    )


BATCHES = [(IMAGES[at : at + 4], LABELS[at : at + 4]) for at in range(0, 20, 4)]


@pytest.mark.parametrize(
    ("saved", "own", "told"),
    [
        ((IMAGES, 4), (BATCHES, None), "26 samples per epoch, but this loader has 5 batches."),
        ((BATCHES, None), (IMAGES, 4), "5 batches per epoch, but this loader has 26 samples."),
        ((IMAGES[:5], 4), (BATCHES, None), "5 samples per epoch, but this loader has 5 batches."),
        (
            (map(abs, [1, 2]), 4),
            (map(abs, [1, 2]), None),
            "an unknown number of samples per epoch, but this loader has an unknown number of batches.",
        ),
    ],
)
def test_samples_and_batches_are_told_apart_by_their_units(saved, own, told):
    state, other = Loader(*saved).state_dict(), Loader(*own)
    with pytest.raises(CursorError) as caught:
        other.load_state_dict(state)
    assert str(caught.value).startswith(f"the cursor was saved with {told}")
    assert "same kind of data" in str(caught.value)


def test_a_cursor_of_an_older_version_has_the_unit_of_its_order():
    def saved_by(*arguments):
        return {name: one for name, one in Loader(*arguments).state_dict().items() if name != "unit"}

    for mine, other, told in (
        ((IMAGES, 4), (torch_loader(), None), "26 samples per epoch, but this loader has 3 batches."),
        ((torch_loader(), None), (IMAGES, 4), "3 batches per epoch, but this loader has 26 samples."),
    ):
        with pytest.raises(CursorError, match=f"was saved with {told}"):
            Loader(*other).load_state_dict(saved_by(*mine))
        Loader(*mine).load_state_dict(saved_by(*mine))
    Loader(BATCHES, None).load_state_dict(saved_by(BATCHES, None))


def test_a_loader_of_batches_shows_their_number():
    assert repr(Loader(BATCHES, None)).startswith("Loader(5 batches, ")
    assert repr(Loader(IMAGES, 4)).startswith("Loader(26 samples, ")
