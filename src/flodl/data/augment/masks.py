"""Notices a mask that stays as it is while its image is cropped or flipped."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from flodl.core import log

from ..batch import split_parts
from .augmentation import Augmentation, flatten
from .images import SMALLEST_IMAGE, RandomCrop, RandomFlip


def warn_of_masks(augment: Augmentation, batch: Any) -> None:
    """Warn if only the images of a batch are moved, and another part has the same height and width.

    Nothing is said if any crop or flip has an `of`: then the parts were selected deliberately.
    """
    moves = [part for part in flatten(augment) if isinstance(part, RandomCrop | RandomFlip)]
    if any(part.of is not None for part in moves):
        return
    moving = [part for part in moves if (part.padding if isinstance(part, RandomCrop) else part.p)]
    structure, parts = split_parts(batch)
    other = next((at for at in range(1, len(parts)) if _is_like(parts[at], parts[0])), None)
    if not moving or other is None:
        return
    first, second = (structure.names[0], structure.names[other]) if structure.names else (0, other)
    log.warn(
        "%s: only part %r of the batch is changed, and part %r has the same height and width (%d×%d), like a "
        "mask. Pass of=(%r, %r) to change both in the same way, or of=%r if this is intended.",
        ", ".join(map(repr, moving)),
        first,
        second,
        *parts[0].shape[2:],
        first,
        second,
        first,
    )


def _is_like(part: Any, images: Any) -> bool:
    """Return whether a part of a batch has an image, or a value for each pixel, for each of the images."""
    if not isinstance(part, Tensor) or not isinstance(images, Tensor) or images.dim() != 4:
        return False
    has_size = part.dim() in (3, 4) and part.shape[-2:] == images.shape[-2:]
    return has_size and len(part) == len(images) and min(images.shape[-2:]) >= SMALLEST_IMAGE
