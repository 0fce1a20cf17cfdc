"""Samples created one by one: transforms, collation, workers and random items."""

import pytest
import torch
from torch.utils.data import Dataset, random_split

from flodl.core import DataError
from flodl.data import Loader

from ..small_loaders import COUNT, IMAGES, LABELS, Noisy, assert_same, everything, loader, noisy_transform


def test_workers_yield_the_same_random_items_as_this_process():
    one, other = (Loader(Noisy(), 4, num_workers=count) for count in (0, 2))
    assert_same(everything(one, 2), everything(other, 2))
    other.close()


def test_random_items_change_with_the_epoch_but_not_with_the_batch_size():
    def by_index(batches):
        return {int(row[0]): row.tolist() for batch in batches for row in batch}

    small, large = Loader(Noisy(), 4), Loader(Noisy(), 9)
    first = by_index(small)
    assert first == by_index(large)
    assert all(first[index][1:] != row[1:] for index, row in by_index(small).items())


def test_a_subset_of_random_items_does_not_depend_on_the_batch_size():
    part, _ = random_split(Noisy(), [10, 16], torch.Generator().manual_seed(0))
    assert torch.equal(torch.cat(list(Loader(part, 3))), torch.cat(list(Loader(part, 7))))


def test_collated_samples_keep_the_structure_of_a_tuple():
    pairs = [(torch.tensor(float(n)), n) for n in range(6)]
    batch = next(iter(Loader(pairs, 4, shuffle=False)))
    assert type(batch) is tuple
    assert batch[1].tolist() == [0, 1, 2, 3]
    named = next(iter(Loader(pairs, 4, shuffle=False, names=("x", "y"))))
    assert named["y"].tolist() == [0, 1, 2, 3]


def test_a_transform_is_called_for_each_sample():
    given = loader(transform=noisy_transform)
    assert given.mode == "streaming"
    assert given.reason.startswith("transform= is called for each sample")


def test_a_collate_function_makes_the_batch():
    ragged = [torch.ones(n) for n in range(1, 8)]
    padded = Loader(
        ragged, 3, shuffle=False, collate=lambda rows: torch.nn.utils.rnn.pad_sequence(rows, True)
    )
    assert [tuple(batch.shape) for batch in padded] == [(3, 3), (3, 6), (1, 7)]


def test_samples_can_be_made_resident():
    class Counted(Noisy):
        reads = 0

        def __getitem__(self, index):
            Counted.reads += 1
            return super().__getitem__(index)

    given = Loader(Counted(), 4, mode="resident")
    everything(given, 3)
    assert Counted.reads == COUNT
    assert given.reason == "mode='resident' was requested; each sample was created once (832 B)"


def test_a_dataset_with_getitems_is_asked_for_batches():
    class Many(Noisy):
        def __getitems__(self, indices):
            return [torch.tensor(index) for index in indices]

    assert torch.cat(list(Loader(Many(), 4, shuffle=False))).tolist() == list(range(COUNT))


def test_an_error_in_a_sample_is_raised_also_from_a_worker():
    def fail(sample):
        raise ValueError("sample is broken")

    for workers in (0, 1):
        given = loader(transform=fail, num_workers=workers)
        with pytest.raises(ValueError, match="sample is broken"):
            everything(given)
        given.close()


def test_a_transform_may_change_its_sample_without_changing_the_data():
    before = IMAGES.clone()
    everything(loader(transform=lambda sample: (sample[0].zero_(), sample[1])))
    assert torch.equal(IMAGES, before)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "samples",
    [[torch.ones(2), torch.ones(3)], [object(), object()], [IMAGES, LABELS]],
    ids=["ragged", "objects", "columns"],
)
def test_samples_that_cannot_be_collated_raise_with_advice(samples, num_workers):
    given = Loader(samples, 2, num_workers=num_workers)
    with pytest.raises(
        DataError, match=r"2 samples cannot be collated into a batch: .*Pass a function as collate="
    ):
        list(given)
    given.close()


def test_a_dataset_whose_length_changed_raises():
    samples = [torch.tensor(number) for number in range(5)]
    given = Loader(samples, 2)
    assert len(list(given)) == 3
    samples.append(torch.tensor(5))
    with pytest.raises(DataError, match=r"the list had 5 samples .* and has 6 now\. Create a new loader"):
        list(given)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_index_error_names_the_sample_and_the_length(num_workers):
    class TooLong(Dataset):
        def __len__(self):
            return 9

        def __getitem__(self, index):
            return [10, 20, 30][index]

    given = Loader(TooLong(), 2, shuffle=False, num_workers=num_workers)
    with pytest.raises(IndexError) as caught:
        list(given)
    told = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert "sample 3 of a TooLong whose length is 9" in told
    given.close()


def test_a_dataset_without_a_length_says_what_to_add():
    class Endless(Dataset):
        def __getitem__(self, index):
            return torch.zeros(2)

    with pytest.raises(DataError, match=r"Endless, which has __getitem__ but no __len__: .* Add def __len__"):
        Loader(Endless(), 2)


class Failing(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 2:
            raise ValueError("broken file")
        return torch.tensor(index)


def failing_collate(samples):
    raise ValueError("cannot pad")


@pytest.mark.parametrize(
    ("source", "settings", "told"),
    [
        (Failing(), {}, "This is sample 2 of a Failing."),
        (
            [(1, "a")] * 4,
            {"collate": failing_collate},
            "collate was called with a list of 2 samples, the first of which is a tuple of int and str: "
            "samples 0, 1.",
        ),
        (
            iter([1, 2, 3]),
            {"collate": failing_collate},
            "called with a list of 2 samples, the first of which is",
        ),
    ],
)
def test_errors_of_a_dataset_and_of_collate_say_which_samples(source, settings, told):
    order = {"shuffle": False} if hasattr(source, "__len__") else {}
    with pytest.raises(ValueError, match=r"broken file|cannot pad") as caught:
        list(Loader(source, 2, **order, **settings))
    assert told in "".join(getattr(caught.value, "__notes__", []))


def test_an_async_collate_raises():
    async def collate(samples):
        return torch.stack(samples)

    with pytest.raises(DataError, match=r"collate returned a coroutine, which is not a batch: .* plain func"):
        next(iter(Loader(list(torch.ones(8, 2)), 4, collate=collate)))


def test_a_collate_without_a_return_raises():
    with pytest.raises(DataError, match="collate returned None, which is not a batch"):
        next(iter(Loader(list(torch.ones(8, 2)), 4, collate=lambda samples: None)))
