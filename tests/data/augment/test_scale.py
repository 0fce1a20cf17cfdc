"""Statistics on the scale of bytes for images from 0 to 1, and the other way round, are noticed."""

import pytest
import torch

from flodl.core import DataError
from flodl.data import Loader, Normalize

BYTES = torch.arange(256, dtype=torch.uint8).repeat(3).view(1, 3, 16, 16)
IN_BYTES = {"mean": [125.0, 120.0, 110.0], "std": [50.0, 50.0, 50.0]}
SCALED = {"mean": [0.5, 0.5, 0.4], "std": [0.2, 0.2, 0.2]}


def normalized(images, *, mean, std):
    loader = Loader(images, 1, augment=Normalize(mean, std))
    for _ in range(3):
        list(loader)


@pytest.mark.parametrize("statistics", [IN_BYTES, {"mean": [0.0] * 3, "std": [255.0] * 3}], ids=str)
def test_statistics_of_bytes_for_bytes_are_an_error(statistics):
    with pytest.raises(DataError, match=r"which are scaled to 0 to 1 first. Divide mean and std by 255"):
        normalized(BYTES, **statistics)


@pytest.mark.parametrize(
    ("images", "statistics", "advice"),
    [
        (BYTES.float() / 255, IN_BYTES, "are from 0 to 1. Divide mean and std by 255."),
        (BYTES.float(), SCALED, "are from 0 to 255. Only bytes (uint8) are scaled to 0 to 1"),
    ],
)
def test_statistics_on_another_scale_are_reported_once(images, statistics, advice, capsys):
    normalized(images, **statistics)
    assert capsys.readouterr().err.count(advice) == 1


@pytest.mark.parametrize(
    ("images", "statistics"),
    [
        (BYTES, SCALED),
        (BYTES.float() / 255, SCALED),
        (BYTES.float(), IN_BYTES),
        (BYTES.float() / 255, {"mean": [0.0] * 3, "std": [1.0] * 3}),
        (torch.randn(1, 3, 16, 16) * 100, SCALED),  # not the colours of an image
        (torch.randn(1, 3, 16, 16), {"mean": [10.0, -3.0, 0.0], "std": [5.0] * 3}),
    ],
)
def test_statistics_on_the_scale_of_the_images_are_not_mentioned(images, statistics, capsys):
    normalized(images, **statistics)
    assert capsys.readouterr().err == ""


def test_images_that_are_normalized_twice_are_reported(capsys):
    normalize, to_one = Normalize(**SCALED), Normalize([0.0] * 3, [255.0] * 3)
    for augment in (normalize, [to_one, normalize], [Normalize(**SCALED, of=0), Normalize(**SCALED, of=1)]):
        Loader((BYTES.float(), BYTES.float()), 1, augment=augment)
    assert "two Normalize" not in capsys.readouterr().err
    Loader(BYTES, 1, augment=[normalize, normalize])
    assert capsys.readouterr().err.count("augment has two Normalize of the same images") == 1
