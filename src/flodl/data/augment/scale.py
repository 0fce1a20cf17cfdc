"""Notices statistics of bytes (0 to 255) for images from 0 to 1, and the other way round."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flodl.core import log
from flodl.core.errors import DataError

# A standard deviation of values from 0 to 1 is at most 0.5; 1 leaves the scale as it is.
_LARGEST_STD = 10.0
# Images from 0 to 255 have brighter pixels than this, and normalized ones do not.
_BRIGHT = 32.0


def check_scale(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> None:
    """Raise if bytes, which are scaled to 0 to 1, are normalized with the statistics of bytes; warn if the
    scale of other images is not that of the statistics.

    >>> check_scale(torch.zeros(1, 1, 2, 2, dtype=torch.uint8), [125.0], [60.0])
    Traceback (most recent call last):
    flodl.core.errors.DataError: Normalize: mean=[125.0], std=[60.0], and the images are bytes, which are ...
    """
    given = f"Normalize: mean={list(mean)}, std={list(std)}"
    in_bytes = max(mean) > 1 or max(std) > _LARGEST_STD
    if images.dtype == torch.uint8:
        if in_bytes:
            raise DataError(
                f"{given}, and the images are bytes, which are scaled to 0 to 1 first. Divide mean and std "
                "by 255."
            )
        return
    if images.is_meta or not images.numel():
        return
    low, high = (float(one) for one in images.aminmax())
    if in_bytes and low >= 0 and 0 < high <= 1 and min(mean) > 1:
        log.warn(
            "%s, and the images of the first batch are from %g to %g. Divide mean and std by 255.",
            given,
            low,
            high,
        )
    elif not in_bytes and low >= 0 and _BRIGHT < high <= 255:
        log.warn(
            "%s, and the images of the first batch are from %g to %g. Only bytes (uint8) are scaled to 0 to "
            "1: divide these images by 255, or multiply mean and std by 255.",
            given,
            low,
            high,
        )
