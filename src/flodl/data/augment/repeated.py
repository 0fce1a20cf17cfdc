"""Notices images that are normalized twice."""

from __future__ import annotations

from .augmentation import Augmentation, flatten
from .images import Normalize


def warning_about_normalizing_twice(augment: Augmentation | None) -> str:
    """Return a warning if two parts of an augmentation normalize the same images, or "".

    >>> from .augmentation import as_augmentation
    >>> twice = as_augmentation([Normalize([0.5], [0.2]), Normalize([0.5], [0.2])])
    >>> warning_about_normalizing_twice(twice).partition(":")[0]
    'augment has two Normalize of the same images'
    """
    found: list[Normalize] = []
    for part in flatten(augment):
        if not isinstance(part, Normalize) or _only_scales(part):
            continue
        if any(part.of == other.of for other in found):
            return (
                "augment has two Normalize of the same images: the second one normalizes the result of the "
                "first. Pass one, or of= if they are for different parts of the batch."
            )
        found.append(part)
    return ""


def _only_scales(part: Normalize) -> bool:
    """Return whether nothing is subtracted, as in a step that brings images to the range from 0 to 1."""
    return set(part.mean) == {0.0}
