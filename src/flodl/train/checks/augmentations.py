"""Augmentations that fit only one of training and evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flodl.data import Compose, Loader, Normalize, RandomCrop, RandomFlip

# Evaluation data is not normalized if it is this many times closer to the images before the normalization.
CLOSER = 3.0
# A smaller change by a normalization could as well be the difference between two batches.
SMALLEST_CHANGE = 0.2


def unfit_augmentations(
    train: Loader | None, evaluation: Loader | None, batch: Any, eval_batch: Any
) -> Iterator[str]:
    """Yield a warning if the evaluation data is randomly augmented, or not normalized like the training data.

    The first batches of both are compared: data may be normalized in other places than a loader.
    """
    if train is None or evaluation is None:
        return
    changes = _parts(evaluation.arguments()["augment"])
    if random := [repr(one) for one in changes if _is_random(one)]:
        yield (
            f"the evaluation loader changes images at random ({', '.join(random)}), so the metrics "
            "are not those of the data itself. Leave that out of its augment; keep Normalize."
        )
    normalize = next(
        (one for one in _parts(train.arguments()["augment"]) if isinstance(one, Normalize)), None
    )
    if normalize is None or any(isinstance(one, Normalize) for one in changes):
        return
    if _is_left_out(normalize, _images(batch, normalize.of), _images(eval_batch, normalize.of)):
        yield (
            f"the training data is normalized by {normalize!r}, and the evaluation data is not: its first "
            "batch has the statistics of images before the normalization. Pass a loader with the same "
            f"Normalize: eval_data=Loader(data, batch_size, shuffle=False, augment={normalize!r})."
        )


def _parts(augment: Any) -> list[Any]:
    """Return the single augmentations of what a loader was given.

    >>> _parts([RandomFlip(), Compose(RandomCrop(2), Normalize([0.5], [0.5]))])
    [RandomFlip(0.5), RandomCrop(2), Normalize([0.5], [0.5])]
    """
    inner = augment.parts if isinstance(augment, Compose) else augment
    if isinstance(inner, Sequence) and not isinstance(inner, str):
        return [one for part in inner for one in _parts(part)]
    return [] if augment is None else [augment]


def _is_random(augment: Any) -> bool:
    if isinstance(augment, RandomFlip):
        return 0.0 < augment.p < 1.0
    return isinstance(augment, RandomCrop) and augment.padding > 0


def _images(batch: Any, of: int | str | None) -> Tensor | None:
    """Return the part of a batch that `of` names, by default the first, if it is images."""
    if isinstance(batch, Mapping):
        found = batch.get(next(iter(batch), None) if of is None else of)
    elif isinstance(batch, tuple | list):
        index = of or 0
        found = batch[index] if isinstance(index, int) and index < len(batch) else None
    else:
        found = batch
    return found if isinstance(found, Tensor) and found.dim() == 4 and found.numel() else None


def _is_left_out(normalize: Normalize, trained: Tensor | None, evaluated: Tensor | None) -> bool:
    """Return whether evaluation images resemble the images of the training before the normalization.

    >>> images = torch.rand(8, 1, 4, 4)
    >>> normalized = (images - 0.5) / 0.1
    >>> normalize = Normalize([0.5], [0.1])
    >>> _is_left_out(normalize, normalized, images), _is_left_out(normalize, normalized, normalized)
    (True, False)
    """
    channels = len(normalize.mean)
    if trained is None or evaluated is None or not trained.is_floating_point():
        return False
    if trained.shape[1] != channels or evaluated.shape[1] != channels:
        return False
    after, found = _statistics(trained), _statistics(evaluated)
    mean, std = torch.tensor(normalize.mean).double(), torch.tensor(normalize.std).double()
    before = torch.stack([after[0] * std + mean, after[1] * std])
    is_changed = (before - after).norm() > SMALLEST_CHANGE
    return bool(is_changed and (found - before).norm() * CLOSER < (found - after).norm())


def _statistics(images: Tensor) -> Tensor:
    """Return the mean and the standard deviation of each channel, of bytes on a scale of 0 to 1."""
    values = images.detach().double() / (255 if images.dtype == torch.uint8 else 1)
    return torch.stack([values.mean((0, 2, 3)), values.std((0, 2, 3), correction=0)]).cpu()
