"""Batched augmentations: each image is changed according to its own random numbers."""

import numpy as np
import pytest
import torch
from torch import nn

from flodl.core import DataError
from flodl.data import Chance, Compose, Loader, Normalize, RandomCrop, RandomFlip
from flodl.data.augment.augmentation import as_augmentation, draws_from_chance
from flodl.data.sampling.order import sample_keys

COUNT = 64
IMAGES = torch.randint(
    0, 256, (COUNT, 3, 8, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)


def chance(count=COUNT):
    return Chance(sample_keys(5, torch.arange(count)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64])
def test_a_crop_is_a_window_of_the_padded_image(dtype):
    images = IMAGES.to(dtype)
    cropped = RandomCrop(2)(images, chance())
    down, right = chance().integers(5, 2).unbind(1)
    padded = torch.nn.functional.pad(images, [2] * 4)
    for number in range(COUNT):
        top, left = int(down[number]), int(right[number])
        assert torch.equal(cropped[number], padded[number, :, top : top + 8, left : left + 6])
    assert cropped.is_contiguous()
    assert len(set(zip(down.tolist(), right.tolist()))) > 10


def test_the_padding_of_a_crop_may_change_between_batches():
    crop = RandomCrop(2)
    crop(IMAGES, chance())
    crop.padding, crop.fill = 1, 9
    assert torch.equal(crop(IMAGES, chance()), RandomCrop(1, fill=9)(IMAGES, chance()))


def test_one_crop_serves_batches_of_any_size_and_shape():
    crop = RandomCrop(2)
    for images in (IMAGES[:5], IMAGES, IMAGES[:5], IMAGES[:, :, :5], IMAGES[:7, :1]):
        expected = RandomCrop(2)(images, chance(len(images)))
        assert torch.equal(crop(images, chance(len(images))), expected)


def test_noncontiguous_images_are_cropped_the_same():
    there = IMAGES.to(memory_format=torch.channels_last)
    assert torch.equal(RandomCrop(2)(there, chance()), RandomCrop(2)(IMAGES, chance()))


def test_the_border_has_the_fill():
    cropped = RandomCrop(1, fill=7)(torch.zeros(200, 1, 3, 3), chance(200))
    assert set(cropped.unique().tolist()) == {0.0, 7.0}


@pytest.mark.parametrize(
    ("padding", "shape", "told"),
    [
        (28, (28, 28), r"RandomCrop\(28\) pads by 28 pixels.*28×28.*RandomCrop\(28, padding=4\)"),
        (8, (16, 32), r"the images are 16×32.*RandomCrop\(\(16, 32\), padding=4\)"),
        (4, (32, 8), "the images are 32×8"),
    ],
)
def test_a_padding_of_half_the_image_or_more_is_an_error(padding, shape, told):
    loader = Loader(torch.zeros(4, 1, *shape), 4, augment=[RandomFlip(), RandomCrop(padding)])
    with pytest.raises(DataError, match=told):
        next(iter(loader))
    augment = RandomCrop((min(shape) - 1) // 2)
    assert next(iter(Loader(torch.zeros(4, 1, *shape), 4, augment=augment))).shape == (4, 1, *shape)


def test_no_padding_changes_nothing():
    assert torch.equal(RandomCrop(0)(IMAGES, chance()), IMAGES)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 6, 8])
def test_a_flip_mirrors_the_images_selected_by_the_coin(dtype, width):
    images = torch.randint(0, 256, (COUNT, 2, 3, width)).to(dtype)
    flipped = RandomFlip(0.5)(images, chance())
    coin = chance().coin(0.5)
    assert 10 < coin.sum() < 54
    assert flipped.dtype == dtype
    assert torch.equal(flipped[coin], images[coin].flip(3))
    assert torch.equal(flipped[~coin], images[~coin])


def test_images_with_an_odd_offset_are_flipped_too():
    within = torch.arange(3 + COUNT * 8, dtype=torch.uint8)[3:].view(COUNT, 1, 1, 8)
    assert torch.equal(RandomFlip(1.0)(within, chance()), within.flip(3))


def test_normalized_bytes_are_normalized_floats():
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
    normalized = Normalize(mean, std)(IMAGES, chance())
    expected = (IMAGES.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    assert normalized.dtype == torch.float32
    assert torch.allclose(normalized.double(), expected, atol=1e-5)
    of_floats = Normalize(mean, std)(IMAGES.float() / 255, chance())
    assert torch.allclose(of_floats, normalized, atol=1e-5)


def test_the_input_batch_is_not_changed():
    before = IMAGES.clone()
    floats = IMAGES.float()
    Compose(RandomCrop(1), RandomFlip(), Normalize([0.5] * 3, [0.5] * 3))(floats, chance())
    assert torch.equal(floats, before.float())


@pytest.mark.parametrize(
    ("batch", "part", "read"),
    [
        ((IMAGES, torch.arange(COUNT)), RandomFlip(1.0), lambda out: out[0]),
        ((torch.arange(COUNT), IMAGES), RandomFlip(1.0, of=1), lambda out: out[1]),
        ({"image": IMAGES, "label": torch.arange(COUNT)}, RandomFlip(1.0), lambda out: out["image"]),
        (
            {"label": torch.arange(COUNT), "image": IMAGES},
            RandomFlip(1.0, of="image"),
            lambda out: out["image"],
        ),
    ],
)
def test_of_selects_the_part_with_the_images(batch, part, read):
    out = part(batch, chance())
    assert torch.equal(read(out), IMAGES.flip(3))
    assert type(out) is type(batch)


def test_each_part_of_a_composition_draws_its_own():
    both = Compose(RandomFlip(), RandomFlip())
    twice = both(IMAGES, chance())
    assert not torch.equal(twice, IMAGES)
    assert repr(both) == "Compose(RandomFlip(0.5), RandomFlip(0.5))"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RandomCrop(-1), "RandomCrop: padding=-1. Pass a number of pixels, an integer >= 0."),
        (lambda: RandomFlip(2.0), "RandomFlip: p=2.0. Pass a probability between 0 and 1."),
        (lambda: Normalize([0.5], [0.0]), "std above 0"),
        (
            lambda: Normalize([0.5], [0.5])(IMAGES, chance()),
            r"Normalize: 1 means for images of shape \(64, 3, 8, 6\)",
        ),
        (lambda: RandomFlip()(torch.zeros(4), chance(4)), r"expects images .*, got a tensor of shape \(4,\)"),
        (lambda: RandomFlip(of=3)((IMAGES,), chance()), "of=3, but the batch is a tuple of 1"),
        (lambda: RandomFlip(of="x")({"y": IMAGES}, chance()), r"the batch has \['y'\], not 'x'"),
    ],
)
def test_wrong_use_raises(call, message):
    with pytest.raises(DataError, match=message):
        call()


def test_a_user_augmentation_declares_draws_from_chance():
    def own(batch, chance):
        return batch

    def plain(batch):
        return batch

    assert draws_from_chance(None)
    assert draws_from_chance(as_augmentation([RandomCrop(1), RandomFlip(), Normalize([0.5], [0.5])]))
    assert not draws_from_chance(as_augmentation(own))
    assert not draws_from_chance(as_augmentation([RandomFlip(), plain]))
    own.draws_from_chance = plain.draws_from_chance = True
    assert draws_from_chance(as_augmentation([RandomFlip(), [own, plain]]))


def test_an_in_place_augmentation_does_not_change_a_list_of_batches():
    batches = [(torch.zeros(4, 2),) for _ in range(3)]
    given = Loader(batches, None, augment=lambda batch: (batch[0].add_(1),))
    for _ in range(3):
        assert [float(x[0, 0]) for (x,) in given] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: Loader((IMAGES, IMAGES), 4, names=("a", "a")),
            r"names=\(.a., .a.\)\. Pass a list of unique names",
        ),
        (lambda: Loader((IMAGES, IMAGES), 4, names="ab"), "names=.ab.\\. Pass a list of unique names"),
        (lambda: list(Loader(IMAGES, 4, sampler=[0.5])), "not a sample index"),
        (lambda: Loader(IMAGES, 4, augment="x"), "augment='x'"),
        (lambda: Loader(IMAGES, 4, augment=RandomFlip), "Pass a function augment"),
        (lambda: Compose([3]), "3 is not an augmentation"),
        (lambda: RandomCrop("4"), r"RandomCrop: padding='4'\. Pass a number of pixels, an integer >= 0"),
        (lambda: RandomCrop(2.5), r"padding=2\.5\. Pass a number of pixels"),
        (lambda: RandomCrop(True), r"padding=True\."),
        (lambda: RandomCrop(4, fill="black"), r"fill='black'\. Pass the value of the padding"),
        (lambda: RandomCrop(4, of=0.5), r"RandomCrop: of=0\.5\. Pass the index or the name"),
        (lambda: RandomFlip("0.5"), r"RandomFlip: p='0\.5'\. Pass a probability"),
        (lambda: RandomFlip(None), r"p=None\."),
        (lambda: Normalize(0.5, 0.25), r"Normalize: mean=0\.5\. Pass a list with one number per channel"),
        (lambda: Normalize([0.5], ["a"]), r"Normalize: std=\['a'\]\. Pass a list with one number"),
        (lambda: Normalize([0.5], [float("nan")]), r"Normalize: std=\[nan\]\."),
    ],
)
def test_wrong_settings_raise(make, told):
    with pytest.raises(DataError, match=told):
        make()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: RandomCrop(), "RandomCrop needs 'padding'.*write RandomCrop\\(4\\), which pads by 4 pixels"),
        (lambda: RandomCrop(32, padding=4), "got 'padding' twice.*write RandomCrop\\(4\\)"),
        (lambda: RandomCrop(32, 4), "takes only padding that way.*write RandomCrop\\(4\\)"),
        (lambda: RandomCrop(size=32), "no argument 'size'. The size of the images stays the same"),
        (lambda: RandomFlip(0.5, 1), "Write RandomFlip\\(\\)"),
        (lambda: Normalize(), r"Normalize needs 'mean'. Write Normalize\(\[0.5\], \[0.25\]\)"),
        (lambda: Normalize([0.5], [0.5], inplace=True), "Leave it out: the data itself is never changed"),
    ],
)
def test_wrong_arguments_are_explained(make, told):
    with pytest.raises(DataError, match=told) as raised:
        make()
    assert isinstance(raised.value, TypeError)


def test_settings_may_be_numbers_of_numpy_and_torch():
    assert RandomCrop(np.int64(4)).padding == 4
    assert RandomFlip(np.float32(0.25)).p == 0.25
    assert Normalize(np.array([0.5]), torch.tensor([0.25])).mean == (0.5,)


def test_a_list_or_a_module_can_be_an_augmentation():
    images = torch.arange(16.0).view(4, 1, 2, 2)
    assert Compose([RandomFlip(), RandomFlip()]).parts[1].p == 0.5
    given = next(iter(Loader(images, 4, shuffle=False, augment=[nn.Identity(), nn.Flatten()])))
    assert given.shape == (4, 4)


@pytest.mark.parametrize("part", [RandomCrop(2), RandomFlip(), Normalize([0.5] * 3, [0.5] * 3)])
@pytest.mark.parametrize("shape", [(4, 32, 32, 3), (4, 28, 28, 1), (4, 48, 64, 4)])
def test_images_with_channels_last_are_an_error(part, shape):
    with pytest.raises(DataError, match=r"where the channels are last.*permute\(0, 3, 1, 2\)"):
        next(iter(Loader(torch.zeros(shape), 4, augment=part)))


@pytest.mark.parametrize("shape", [(4, 3, 32, 32), (4, 64, 4, 4), (4, 3, 32, 3), (4, 1, 28, 1)])
def test_small_or_narrow_images_are_not_taken_for_channels_last(shape):
    assert next(iter(Loader(torch.zeros(shape), 4, augment=RandomFlip()))).shape == shape


@pytest.mark.parametrize(
    "call",
    [
        "RandomCrop(2)",
        "RandomCrop(2, fill=0.5)",
        "RandomCrop(2, fill=1, of=(0, 1))",
        "RandomFlip(0.5)",
        "RandomFlip(0.25, of='image')",
        "Normalize([0.5], [0.25])",
        "Normalize([0.5], [0.25], of=1)",
        "Compose(RandomFlip(0.5, of=0), Normalize([0.5], [0.25], of=0))",
    ],
)
def test_the_repr_has_every_argument_that_differs_from_its_default(call):
    assert repr(eval(call)) == call
