"""Images with masks: both are moved in the same way, or a warning says that only the images are."""

import pytest
import torch

from flodl.core import DataError
from flodl.data import Chance, Loader, Normalize, RandomCrop, RandomFlip
from flodl.data.augment.fused import Chain
from flodl.data.sampling.order import sample_keys

IMAGES = 0.1 + torch.rand(64, 1, 16, 12, generator=torch.Generator().manual_seed(0))
MASKS = (IMAGES[:, 0] > 0.5).long()
WARNED = "only part 0 of the batch is changed, and part 1 has the same height and width (16×12)"


def of_image(images):
    return (images > 0.5).long()


@pytest.mark.parametrize("mode", ["resident", "streaming"])
@pytest.mark.parametrize("masks", [MASKS, MASKS[:, None], MASKS.bool(), MASKS.to(torch.uint8)])
def test_images_and_masks_are_moved_in_the_same_way(masks, mode, capsys):
    augment = [RandomCrop(2, of=(0, 1)), RandomFlip(of=(0, 1))]
    loader = Loader((IMAGES, masks), 32, augment=augment, mode=mode)
    for images, moved in loader:
        assert moved.dtype == masks.dtype
        assert moved.shape[1:] == masks.shape[1:]
        assert torch.equal(of_image(images), moved.long().view(images.shape))
    assert capsys.readouterr().err == ""


def test_a_mask_does_not_change_the_random_numbers_of_the_images():
    def augmented(of, *data):
        augment = [RandomCrop(2, of=of), RandomFlip(of=of)]
        return next(iter(Loader(data, 64, seed=3, augment=augment)))[0]

    assert torch.equal(augmented([0, 1], IMAGES, MASKS), augmented(None, IMAGES))


def test_parts_of_a_dict_are_moved_in_the_same_way():
    data = {"id": torch.arange(64), "mask": MASKS, "image": IMAGES}
    batch = next(iter(Loader(data, 64, augment=RandomFlip(of=("image", "mask")))))
    assert torch.equal(of_image(batch["image"])[:, 0], batch["mask"])
    assert not torch.equal(batch["image"], IMAGES[batch["id"]])


@pytest.mark.parametrize("mode", ["resident", "streaming"])
@pytest.mark.parametrize("masks", [MASKS, IMAGES])
@pytest.mark.parametrize("augment", [RandomFlip(), [RandomCrop(2), Normalize([0.5], [0.2])]], ids=str)
def test_a_mask_that_stays_as_it_is_is_reported_once(augment, masks, mode, capsys):
    loader = Loader((IMAGES, masks), 32, augment=augment, mode=mode)
    for _ in range(2):
        list(loader)
    told = capsys.readouterr().err
    assert told.count(WARNED) == 1
    assert "Pass of=(0, 1) to change both in the same way, or of=0 if this is intended." in told


def test_the_warning_names_the_parts_of_a_dict(capsys):
    next(iter(Loader({"image": IMAGES, "mask": MASKS}, 32, augment=RandomFlip())))
    assert "Pass of=('image', 'mask')" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "augment"),
    [
        ((IMAGES, torch.arange(64)), RandomFlip()),
        ((IMAGES, torch.zeros(64, 16)), RandomFlip()),
        ((IMAGES, torch.zeros(64, 12, 16)), RandomFlip()),
        ((IMAGES[..., :4, :4], torch.zeros(64, 4, 4)), RandomFlip()),
        ((IMAGES, MASKS), RandomFlip(of=0)),
        ((IMAGES, IMAGES), [RandomFlip(), RandomFlip(of=1)]),
        ((IMAGES, MASKS), Normalize([0.5], [0.2])),
        ((IMAGES, MASKS), [RandomFlip(0.0), RandomCrop(0)]),
        ((IMAGES, MASKS), lambda batch: batch),
        (IMAGES, RandomFlip()),
    ],
)
def test_other_batches_are_not_reported(data, augment, capsys):
    next(iter(Loader(data, 32, augment=augment)))
    assert capsys.readouterr().err == ""


def test_several_parts_are_not_fused():
    assert Chain.of(RandomFlip(of=(0, 1))) is None


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: RandomFlip(of=()), r"of=\(\)"),
        (lambda: RandomFlip(of=(0, 0)), "a tuple of different ones"),
        (lambda: RandomFlip(of=(0, None)), r"of=\(0, None\)"),
        (lambda: Normalize([0.5], [0.5], of=(0, 1)), "Normalize: of=.*every part has its own statistics"),
        (
            lambda: RandomCrop(2, of=(0, 1))(
                (IMAGES, MASKS[:, ::2]), Chance(sample_keys(1, torch.arange(64)))
            ),
            "the parts have different heights and widths",
        ),
    ],
)
def test_parts_that_cannot_be_changed_in_the_same_way_raise(call, told):
    with pytest.raises(DataError, match=told):
        call()
