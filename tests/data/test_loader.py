"""The loader: every sample once per epoch, in an order that resumes exactly, in any mode."""

import os
from itertools import islice

import numpy as np
import pytest
import torch

from flodl.core import DataError
from flodl.data import Loader, Normalize, RandomCrop, RandomFlip
from flodl.data.internals import backend_of

from .small_loaders import AUGMENT, COUNT, IMAGES, LABELS, SETTINGS, assert_same, everything, loader


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


def test_the_default_device_is_that_of_the_data():
    assert Loader(torch.empty(4, device="meta"), 2).device == torch.device("meta")
    assert loader().device == torch.device("cpu")


def test_augmentation_does_not_depend_on_the_batch_size():
    small, large = (torch.cat([x for x, _ in loader(augment=AUGMENT, batch_size=size)]) for size in (3, 11))
    assert torch.equal(small, large)


def test_leaving_and_reentering_an_epoch_loses_nothing():
    for settings in ({}, {"mode": "streaming", "num_workers": 2}):
        given = loader(**settings)
        seen = []
        while given.epoch == 0:
            for item in given.with_positions():
                seen += item.batch[1].tolist()
                if len(seen) % 8 == 0:
                    break
        given.close()
        assert seen == torch.cat([labels for _, labels in loader()]).tolist()


def left_by_a_break(given):
    for _ in given:
        if given.position == given.num_samples:
            break


def left_by_islice(given):
    list(islice(given, len(given)))


def left_by_zip(given):
    list(zip(range(2), given))


@pytest.mark.parametrize("leave", [left_by_a_break, left_by_islice, left_by_zip])
@pytest.mark.parametrize("settings", [{}, {"mode": "streaming"}], ids=str)
def test_a_loop_that_is_left_early_is_followed_by_a_whole_new_epoch(leave, settings):
    given, alone = loader(**settings), loader(**settings)
    for _ in range(3):
        leave(given)
        assert given.is_left_early
    alone.set_epoch(3)
    assert_same(everything(given, 4), everything(alone, 4))
    assert not given.is_left_early


def test_a_loop_after_a_loaded_cursor_yields_the_rest_of_its_epoch_once():
    given, alone = loader(), loader()
    first = everything(alone, 1)
    next(iter(given))
    given.load_state_dict(given.state_dict())
    assert not given.is_left_early
    iter(given)  # reads nothing
    assert_same([next(iter(given))], first[1:2])
    assert_same([next(iter(given))], [next(iter(alone))])


def test_a_preserved_position_remembers_a_loop_that_was_left_early():
    given, alone = loader(), loader()
    next(iter(given))
    with given.preserved_position():
        list(given)
    assert (given.epoch, given.position, given.is_left_early) == (0, given.batch_size, True)
    alone.set_epoch(1)
    assert_same([next(iter(given))], [next(iter(alone))])


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
    now = backend_of(given).current
    before = now.order.data_ptr(), now.chance.keys.data_ptr()
    given.set_epoch(1)
    given.begin_epoch()
    now = backend_of(given).current
    assert (now.order.data_ptr(), now.chance.keys.data_ptr()) == before
    assert given.take(torch.arange(4))[1].tolist() == next(iter(given))[1].tolist()


def test_an_augmentation_may_take_only_the_batch():
    doubled = Loader(LABELS, 4, shuffle=False, augment=lambda batch: batch * 2)
    assert next(iter(doubled)).tolist() == [0, 2, 4, 6]


def test_repr_shows_mode_and_reason():
    assert repr(loader()) == (
        "Loader(26 samples, batch_size=4, device=cpu, mode='resident': "
        "the data (3 KB) is already in host memory)"
    )


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
    with pytest.raises(DataError, match="its workers have ended"):
        everything(given)


def test_a_closed_loader_with_workers_raises():
    given = loader(mode="streaming", num_workers=1)
    given.close()
    with pytest.raises(DataError, match="the loader is closed"):
        next(iter(given))


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
        (lambda: Loader((IMAGES, "labels"), 4), "a tuple of Tensor, str. Pass tensors or arrays"),
        (
            lambda: Loader((list(IMAGES), LABELS), 4),
            r"a tuple of list, Tensor\. Part 0 is a list of tensors: pass torch\.stack",
        ),
        (
            lambda: Loader(([torch.zeros(2), torch.zeros(3)], LABELS[:2]), 1),
            r"a list of tensors of different shapes\. Pass a list of samples to a Loader, .* collate=pad",
        ),
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
        (lambda: Loader(3, 4), "the source is an int, which a loader cannot read"),
        (
            lambda: loader(mode="streaming").take(torch.arange(2)),
            "take needs resident data, but this loader is streaming",
        ),
    ],
)
def test_wrong_settings_raise(make, message):
    with pytest.raises(DataError, match=message):
        make()


def test_an_augmentation_without_a_return_value_raises():
    for settings in ({}, {"mode": "streaming"}, {"augment": [lambda batch: None, lambda batch: batch]}):
        with pytest.raises(DataError, match=r"augment returned None\. Return the batch"):
            list(loader(**{"augment": lambda batch, chance: None, **settings}))


def test_an_unknown_device_raises():
    with pytest.raises(DataError, match="device='nope' is not a device"):
        Loader(torch.zeros(4), 2, device="nope")


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


SAMPLES = [(torch.tensor([float(i)]), i) for i in range(8)]


@pytest.mark.parametrize("transform", [lambda x, y: (x, y), lambda x: x.sum()])
def test_an_error_of_a_transform_says_what_it_is_called_with(transform):
    for source in (SAMPLES, iter(SAMPLES)):
        with pytest.raises((TypeError, AttributeError)) as caught:
            next(iter(Loader(source, 4, transform=transform)))
        (note,) = caught.value.__notes__
        assert note.startswith("transform was called with a whole sample, a tuple of Tensor and int. For a ")


@pytest.mark.parametrize("augment", [lambda x, y: (x + 1, y), lambda x, y, z: x, [lambda x, y: x.sum()]])
def test_an_error_of_an_augmentation_says_what_it_is_called_with(augment):
    with pytest.raises((TypeError, AttributeError)) as caught:
        next(iter(Loader((torch.zeros(8, 2), torch.zeros(8)), 4, augment=augment)))
    (note,) = caught.value.__notes__
    assert note.startswith("augment is called with the whole batch and a Chance")


def test_an_flodl_errors_own_augmentation_gets_no_second_explanation():
    with pytest.raises(DataError, match="RandomFlip expects images") as caught:
        next(iter(Loader(torch.zeros(8, 2), 4, augment=RandomFlip())))
    assert not getattr(caught.value, "__notes__", [])


def test_an_augmentation_that_takes_the_chance_for_a_part_of_the_batch_is_an_error():
    loader = Loader((torch.zeros(8, 2), torch.zeros(8)), 4, augment=lambda x, y: (x, y))
    with pytest.raises(
        DataError, match="augment returned its second argument, a Chance, as part of the batch"
    ):
        next(iter(loader))


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("batchsize", "Write batch_size="),
        ("num_worker", "Did you mean 'num_workers'?"),
        ("shufle", "shuffle"),
    ],
)
def test_a_misspelled_attribute_of_a_loader_is_an_error_with_a_suggestion(name, advice):
    loader = Loader(torch.arange(4), 2)
    with pytest.raises(
        DataError, match=f"loader.{name} was assigned, but a Loader has no such attribute"
    ) as error:
        setattr(loader, name, 4)
    assert advice in str(error.value)
    loader.label = "mine"
    assert (loader.label, len(list(loader))) == ("mine", 2)
