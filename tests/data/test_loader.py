"""The loader: every sample once per epoch, in an order that resumes exactly, in any mode."""

import json
import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, TensorDataset, random_split

from flodl.core import CursorError, DataError
from flodl.data import Loader, Normalize, RandomCrop, RandomFlip
from flodl.data.sampling.order import permutation

COUNT = 26
IMAGES = torch.randint(
    0, 256, (COUNT, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
LABELS = torch.arange(COUNT)
AUGMENT = [RandomCrop(1), RandomFlip(), Normalize([0.5] * 3, [0.25] * 3)]


class Noisy(Dataset):
    """Items that use every global generator, as transforms of images do."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        import random

        return torch.tensor(
            [index, random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64
        )


def noisy_transform(sample):
    image, label = sample
    return image.float() + torch.rand(()), label


def loader(**settings):
    return Loader((IMAGES, LABELS), **{"batch_size": 4, "seed": 5, **settings})


def everything(loader, epochs=1):
    return [batch for _ in range(epochs) for batch in loader]


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


SETTINGS = {
    "resident": {"augment": AUGMENT},
    "streaming": {"augment": AUGMENT, "mode": "streaming"},
    "workers": {"augment": AUGMENT, "mode": "streaming", "num_workers": 2},
    "transform": {"transform": noisy_transform},
    "transform in workers": {"transform": noisy_transform, "num_workers": 2},
    "dropping": {"drop_last": True},
}


@pytest.mark.parametrize("mode", ["resident", "streaming"])
def test_an_epoch_has_every_sample_once_and_a_partial_last_batch(mode):
    batches = everything(loader(mode=mode))
    assert [len(labels) for _, labels in batches] == [4, 4, 4, 4, 4, 4, 2]
    images, labels = (torch.cat(parts) for parts in zip(*batches))
    assert sorted(labels.tolist()) == list(range(COUNT))
    assert torch.equal(images, IMAGES[labels])


def test_the_epoch_advances_at_its_end():
    given = loader()
    assert (len(given), given.num_samples, given.epoch, given.position) == (7, COUNT, 0, 0)
    orders = []
    for epoch in range(3):
        assert given.epoch == epoch
        orders.append([labels.tolist() for _, labels in given])
    assert orders[0] != orders[1] != orders[2]
    given.set_epoch(1)
    assert [labels.tolist() for _, labels in given] == orders[1]


@pytest.mark.parametrize("other", ["streaming", "workers"])
def test_every_mode_yields_the_same_bits(other):
    given = loader(**SETTINGS[other])
    assert_same(everything(loader(**SETTINGS["resident"]), 2), everything(given, 2))
    given.close()


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


def test_the_default_device_is_that_of_the_data():
    assert Loader(torch.empty(4, device="meta"), 2).device == torch.device("meta")
    assert loader().device == torch.device("cpu")


def test_augmentation_does_not_depend_on_the_batch_size():
    small, large = (torch.cat([x for x, _ in loader(augment=AUGMENT, batch_size=size)]) for size in (3, 11))
    assert torch.equal(small, large)


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


def test_leaving_and_reentering_a_loop_loses_nothing():
    for settings in ({}, {"mode": "streaming", "num_workers": 2}):
        given = loader(**settings)
        seen = []
        while given.epoch == 0:
            for _, labels in given:
                seen += labels.tolist()
                if len(seen) % 8 == 0:
                    break
        given.close()
        assert seen == torch.cat([labels for _, labels in loader()]).tolist()


def test_a_new_iteration_ends_the_old_one():
    given = loader()
    older = iter(given)
    next(older)
    next(iter(given))
    with pytest.raises(DataError, match="this iteration of the loader is over"):
        next(older)


@pytest.mark.parametrize(
    "move", [lambda given: given.set_epoch(4), lambda given: given.load_state_dict(given.state_dict())]
)
def test_moving_the_cursor_ends_an_iteration(move):
    given = loader()
    iterator = iter(given)
    next(iterator)
    move(given)
    with pytest.raises(DataError, match="its cursor was moved"):
        next(iterator)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))
def test_the_global_rng_state_does_not_change(settings):
    import random

    def state():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before = state()
    given = loader(**settings)
    everything(given)
    given.close()
    assert state() == before


def test_take_uses_the_order_of_the_iteration():
    given = loader(augment=AUGMENT)
    batches = everything(given)
    given.set_epoch(0)
    given.begin_epoch()
    assert_same([given.take(torch.arange(4, 8)), given.take(torch.arange(24, 26))], [batches[1], batches[6]])


def test_the_tensors_of_take_keep_their_data_pointers():
    given = loader()
    given.begin_epoch()
    now = given._backend._current
    before = now.order.data_ptr(), now.chance.keys.data_ptr()
    given.set_epoch(1)
    given.begin_epoch()
    now = given._backend._current
    assert (now.order.data_ptr(), now.chance.keys.data_ptr()) == before
    assert given.take(torch.arange(4))[1].tolist() == next(iter(given))[1].tolist()


@pytest.mark.parametrize(
    ("source", "names", "expected"),
    [
        ((IMAGES, LABELS), None, ("tuple", 2)),
        ([IMAGES[0]] * 4, None, ("Tensor", None)),
        (IMAGES, None, ("Tensor", None)),
        ({"x": IMAGES, "y": LABELS}, None, ("dict", ["x", "y"])),
        ((IMAGES, LABELS), ("image", "label"), ("dict", ["image", "label"])),
        (IMAGES, ["image"], ("dict", ["image"])),
        ({"x": IMAGES, "y": LABELS, "z": LABELS}, ["z", "x"], ("dict", ["z", "x"])),
        (TensorDataset(IMAGES, LABELS), None, ("tuple", 2)),
        ((IMAGES.numpy(), LABELS.numpy()), None, ("tuple", 2)),
    ],
)
def test_a_batch_has_the_structure_of_its_source(source, names, expected):
    batch = next(iter(Loader(source, 4, names=names)))
    kind, parts = expected
    assert type(batch).__name__ == kind
    if kind == "dict":
        assert list(batch) == parts
    elif kind == "tuple":
        assert len(batch) == parts


def test_collated_samples_keep_the_structure_of_a_tuple():
    pairs = [(torch.tensor(float(n)), n) for n in range(6)]
    batch = next(iter(Loader(pairs, 4, shuffle=False)))
    assert type(batch) is tuple
    assert batch[1].tolist() == [0, 1, 2, 3]
    named = next(iter(Loader(pairs, 4, shuffle=False, names=("x", "y"))))
    assert named["y"].tolist() == [0, 1, 2, 3]


def test_a_split_of_a_tensor_dataset_is_resident_too():
    part, _ = random_split(TensorDataset(IMAGES, LABELS), [10, 16], torch.Generator().manual_seed(0))
    given = Loader(part, 4)
    assert given.mode == "resident"
    assert sorted(torch.cat([labels for _, labels in given]).tolist()) == sorted(part.indices)


def test_memory_mapped_arrays_stay_in_their_file(tmp_path):
    np.save(tmp_path / "x.npy", IMAGES.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    given = Loader((mapped, LABELS), 4, seed=5)
    assert (given.mode, given.reason) == ("streaming", "the data (3 KB) stays in memory-mapped files")
    assert_same(everything(given), everything(loader()))
    assert_same(everything(Loader((mapped, LABELS), 4, seed=5, mode="resident")), everything(loader()))


def reversed_rows(array):
    return array[::-1]


def reversed_columns(array):
    return array[:, ::-1]


def big_endian(array):
    return array.astype(array.dtype.newbyteorder(">"))


@pytest.mark.parametrize("mode", ["resident", "streaming"])
@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.parametrize("change", [reversed_rows, reversed_columns, big_endian])
def test_arrays_that_torch_cannot_share_are_converted(change, locked, mode):
    array = change(np.arange(12, dtype=np.float32).reshape(4, 3))
    array.flags.writeable = not locked
    (batch,) = Loader(array, 4, shuffle=False, mode=mode)
    assert batch.dtype == torch.float32
    assert batch.tolist() == array.tolist()


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("change", [reversed_rows, big_endian])
def test_memory_mapped_arrays_are_converted_row_by_row(tmp_path, change, mode):
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.save(tmp_path / "x.npy", big_endian(array) if change is big_endian else array)
    mapped = np.load(tmp_path / "x.npy", mmap_mode=mode)
    mapped = mapped if change is big_endian else change(mapped)
    given = Loader(mapped, 4, shuffle=False)
    assert (given.mode, given.reason) == ("streaming", "the data (48 B) stays in memory-mapped files")
    assert next(iter(given)).tolist() == mapped.tolist()
    assert next(iter(Loader(mapped, 4, shuffle=False, mode="resident"))).tolist() == mapped.tolist()


def test_read_only_arrays_are_not_copied():
    locked = IMAGES.numpy().copy()
    locked.flags.writeable = False
    assert_same(everything(Loader((locked, LABELS), 4, seed=5)), everything(loader()))


def test_a_batch_can_be_changed_without_changing_the_data():
    before = IMAGES.clone()
    for images, _ in loader(shuffle=False):
        images.zero_()
    assert torch.equal(IMAGES, before)


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


def test_an_augmentation_may_take_only_the_batch():
    doubled = Loader(LABELS, 4, shuffle=False, augment=lambda batch: batch * 2)
    assert next(iter(doubled)).tolist() == [0, 2, 4, 6]


def test_repr_shows_mode_and_reason():
    assert repr(loader()) == (
        "Loader(26 samples, batch_size=4, device=cpu, mode='resident': "
        "the data (3 KB) is already in host memory)"
    )


def test_an_error_in_a_sample_is_raised_also_from_a_worker():
    def fail(sample):
        raise ValueError("sample is broken")

    for workers in (0, 1):
        given = loader(transform=fail, num_workers=workers)
        with pytest.raises(ValueError, match="sample is broken"):
            everything(given)
        given.close()


def die(sample):
    os._exit(3)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_dead_worker_raises_one_error_with_likely_causes(num_workers):
    given = loader(transform=die, num_workers=num_workers)
    with pytest.raises(DataError, match=r"a worker of the loader died: process \(pid") as caught:
        everything(given)
    assert "run out of memory" in str(caught.value)
    assert str(caught.value).endswith("Use num_workers=0 to find out where.")
    assert caught.value.__context__ is None
    with pytest.raises(DataError, match="has no workers any more"):
        everything(given)


def test_a_transform_may_change_its_sample_without_changing_the_data():
    before = IMAGES.clone()
    everything(loader(transform=lambda sample: (sample[0].zero_(), sample[1])))
    assert torch.equal(IMAGES, before)


def test_a_closed_loader_with_workers_raises():
    given = loader(mode="streaming", num_workers=1)
    given.close()
    with pytest.raises(DataError, match="the loader is closed"):
        next(iter(given))


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: loader(batch_size=0), "batch_size=0. Pass an integer >= 1."),
        (lambda: loader(batch_size=2.5), "batch_size=2.5"),
        (lambda: loader(batch_size=None), r"batch_size is None, .* such as batch_size=32\. .*DataLoader\("),
        (lambda: loader(num_workers=-1), "num_workers=-1"),
        (lambda: loader(mode="fast"), "mode='fast'. Pass one of 'auto', 'resident', 'streaming'."),
        (lambda: loader(memory_cap=1.5), "memory_cap=1.5. Pass a fraction"),
        (lambda: loader(shuffle_buffer=4), "shuffle_buffer= is only for iterables"),
        (lambda: loader(augment=3), "augment=3. Pass a function"),
        (lambda: loader(names=("a",)), r"1 names \['a'\] for 2 parts"),
        (lambda: loader(batch_size=27, drop_last=True), "drop_last=True leaves no batch: 26 samples"),
        (lambda: loader(sampler=[]), "the sampler returned no samples. Return at least one"),
        (lambda: Loader((IMAGES, LABELS[:3]), 4), r"unequal lengths \{'0': 26, '1': 3\}"),
        (lambda: Loader((IMAGES, "labels"), 4), "a tuple of Tensor, str"),
        (
            lambda: Loader({"train": [1, 2]}, 4),
            "a dict of list. Pass a dict of tensors or arrays, or one of",
        ),
        (lambda: Loader({"x": IMAGES}, 4, names=["y"]), r"names has 'y', but the data has \['x'\]"),
        (lambda: Loader(torch.tensor(3.0), 4), "column '0' is a single number"),
        (lambda: Loader(np.array(["a", "b"]), 4), "column '0' has dtype <U1, which torch does not support"),
        (lambda: Loader(torch.empty(0, 3), 4), "the source has no samples"),
        (lambda: Loader((LABELS, LABELS.to("meta")), 4), "the columns are on cpu and meta"),
        (lambda: Loader("file.bin", 4), "the source is a str, which a loader cannot read"),
        (lambda: Loader(3, 4), "the source is a int, which a loader cannot read"),
        (
            lambda: loader(mode="streaming").take(torch.arange(2)),
            "take needs resident data, but this loader is streaming",
        ),
    ],
)
def test_wrong_settings_raise(make, message):
    with pytest.raises(DataError, match=message):
        make()


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


def test_an_augmentation_without_a_return_value_raises():
    for settings in ({}, {"mode": "streaming"}, {"augment": [lambda batch: None, lambda batch: batch]}):
        with pytest.raises(DataError, match=r"augment returned None\. Return the batch"):
            list(loader(**{"augment": lambda batch, chance: None, **settings}))


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
def test_unsigned_integers_keep_their_type(dtype):
    values = np.array([1, 2, np.iinfo(dtype).max], dtype=dtype)
    (batch,) = Loader(values, 3, shuffle=False)
    assert batch.numpy().dtype == dtype
    assert batch.tolist() == values.tolist()


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_dataframe_is_a_dict_of_its_columns(package):
    frame = pytest.importorskip(package).DataFrame({"a": [1, 2, 3], "b": [0.5, 1.0, 1.5]})
    (batch,) = Loader(frame, 3, shuffle=False)
    assert {name: column.tolist() for name, column in batch.items()} == {"a": [1, 2, 3], "b": [0.5, 1.0, 1.5]}
    with pytest.raises(DataError, match="column 'a' has dtype"):
        Loader(pytest.importorskip(package).DataFrame({"a": ["x", "y"]}), 2)


def test_an_unknown_device_raises():
    with pytest.raises(DataError, match="device='nope' is not a device"):
        Loader(torch.zeros(4), 2, device="nope")


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


def test_an_iterator_is_one_shot_and_not_rewound():
    loader = Loader(iter([torch.tensor(number) for number in range(6)]), 2)
    assert loader.is_one_shot
    assert not Loader(torch.arange(4), 2).is_one_shot
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1]
    loader.rewind()
    assert next(batches).tolist() == [2, 3]


@pytest.mark.parametrize("mode", ["resident", "streaming"])
def test_batches_prefetched_in_inference_mode_can_be_trained_on(mode):
    pictures = torch.randint(0, 256, (20, 3, 8, 8), dtype=torch.uint8)
    augment = [RandomCrop(1), RandomFlip(), Normalize([0.5] * 3, [0.2] * 3)]
    loader = Loader(pictures, 8, augment=augment, mode=mode)
    with torch.inference_mode():
        assert not any(batch.is_inference() for batch in loader)
        if mode == "resident":
            loader.begin_epoch()
    weight = torch.ones(8, 8, requires_grad=True)
    for batch in loader:
        (batch * weight).sum().backward()
    assert weight.grad is not None
