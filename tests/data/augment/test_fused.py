"""Which augmentations and images the fused kernel supports; its results are tested on CUDA."""

from __future__ import annotations

import pytest
import torch

from flodl.data import Normalize, RandomCrop, RandomFlip
from flodl.data.augment.augmentation import Compose
from flodl.data.augment.fused import Chain, image_index
from flodl.data.batch import split_parts

IMAGES = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
CROP, FLIP, NORMALIZE = RandomCrop(2), RandomFlip(), Normalize([0.5] * 3, [0.5] * 3)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([CROP, FLIP, NORMALIZE], (CROP, FLIP, NORMALIZE)),
        ([CROP, NORMALIZE], (CROP, None, NORMALIZE)),
        ([Compose(CROP), Compose(FLIP)], (CROP, FLIP, None)),
        ([NORMALIZE], (None, None, NORMALIZE)),
    ],
    ids=str,
)
def test_crop_flip_and_normalize_in_this_order_form_a_chain(parts, expected):
    chain = Chain.of(Compose(*parts))
    assert (chain.crop, chain.flip, chain.normalize) == expected


class Other(RandomFlip):
    """A user's subclass of an augmentation."""


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [FLIP, CROP],
        [FLIP, FLIP],
        [NORMALIZE, CROP],
        [FLIP, print],
        [Other()],
        [FLIP, RandomCrop(2, of=1)],
    ],
    ids=str,
)
def test_other_augmentations_form_no_chain(parts):
    assert Chain.of(Compose(*parts)) is None


@pytest.mark.parametrize(
    ("images", "augment"),
    [
        (IMAGES.to(torch.float64), FLIP),
        (IMAGES[0], FLIP),
        (IMAGES.permute(0, 1, 3, 2), FLIP),
        (IMAGES[:, :, :0], FLIP),
        (IMAGES[:, :2], NORMALIZE),
        (IMAGES, RandomCrop(2, fill=0.5)),
        (IMAGES, RandomCrop(2, fill=256)),
        ([1, 2], FLIP),
    ],
)
def test_unsupported_images_are_left_to_the_augmentations(images, augment):
    assert Chain.of(augment).supports(IMAGES) == (images is not IMAGES)
    assert not Chain.of(augment).supports(images)


@pytest.mark.parametrize(
    ("batch", "of", "place"),
    [
        (IMAGES, None, 0),
        (IMAGES, 5, 0),
        ((torch.arange(4), IMAGES), 1, 1),
        ((torch.arange(4), IMAGES), 2, None),
        ((torch.arange(4), IMAGES), "x", None),
        ({"x": IMAGES, "y": torch.arange(4)}, None, 0),
        ({"y": torch.arange(4), "x": IMAGES.float()}, "x", 1),
        ({"y": torch.arange(4), "x": IMAGES.float()}, 1, None),
    ],
)
def test_the_images_are_found_where_the_augmentation_expects_them(batch, of, place):
    assert image_index(Chain.of(RandomFlip(of=of)).name, split_parts(batch)[0]) == place
