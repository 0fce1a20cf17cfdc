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
    """Yield a warning if the evaluation data is randomly augmented, or normalized unlike the training data.

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
    ours, theirs = (_normalize_of(one.arguments()["augment"]) for one in (train, evaluation))
    normalize = ours or theirs
    of = None if normalize is None else normalize.of
    images, eval_images = _images(batch, of), _images(eval_batch, of)
    if normalize is None:
        yield from _on_other_scales(images, eval_images)
    elif theirs is None and _is_left_out(normalize, images, eval_images):
        yield (
            f"the training data is normalized by {normalize!r}, and the evaluation data is not: its first "
            "batch has the statistics of images before the normalization. Pass a loader with the same "
            f"Normalize: eval_data=Loader(data, batch_size, shuffle=False, augment={normalize!r})."
        )
    elif ours is None and _is_left_out(normalize, eval_images, images):
        yield (
            f"the evaluation data is normalized by {normalize!r}, and the training data is not: its first "
            "batch has the statistics of images before the normalization. Pass Loader(data, batch_size, "
            f"augment={normalize!r}) as training data."
        )
    elif ours is not None and theirs is not None and _is_other(ours, theirs, images, eval_images):
        yield (
            f"the training data is normalized by {ours!r} and the evaluation data by {theirs!r}, and their "
            "first batches have different statistics. Use the same Normalize for both."
        )


def _normalize_of(augment: Any) -> Normalize | None:
    return next((one for one in _parts(augment) if isinstance(one, Normalize)), None)


def _on_other_scales(images: Tensor | None, eval_images: Tensor | None) -> Iterator[str]:
    """Yield a warning if one of two batches of float images is on a scale to 1, and the other to 255."""
    if images is None or eval_images is None:
        return
    scales = [_scale(each) for each in (images, eval_images)]
    if sorted(scales) == [1, 255]:
        trained, evaluated = scales
        yield (
            f"the training images have values from 0 to {trained} and the evaluation images from 0 to "
            f"{evaluated}. Divide those up to 255 by 255."
        )


def _scale(images: Tensor) -> int:
    """Return the usual upper end of the values of float images, 1 or 255; 0 if it is another one.

    >>> _scale(torch.rand(2, 1, 4, 4)), _scale(torch.tensor([0.0, 200.0])), _scale(torch.tensor([-1.0, 1.0]))
    (1, 255, 0)
    """
    if not images.is_floating_point():
        return 0
    low, high = float(images.min()), float(images.max())
    if low < 0 or not high <= 255:
        return 0
    return 1 if 0 < high <= 1 else 255 if high > 100 else 0


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
    before = _before(normalize, after)
    is_changed = (before - after).norm() > SMALLEST_CHANGE
    return bool(is_changed and (found - before).norm() * CLOSER < (found - after).norm())


def _is_other(ours: Normalize, theirs: Normalize, trained: Tensor | None, evaluated: Tensor | None) -> bool:
    """Return whether evaluation images would resemble those of the training with its normalization only."""
    if trained is None or evaluated is None or len(ours.mean) != len(theirs.mean):
        return False
    if not trained.shape[1] == evaluated.shape[1] == len(ours.mean):
        return False
    expected, found = _statistics(trained), _statistics(evaluated)
    mean, std = torch.tensor(ours.mean).double(), torch.tensor(ours.std).double()
    before = _before(theirs, found)
    same = torch.stack([(before[0] - mean) / std, before[1] / std])
    apart = (found - expected).norm()
    return bool(apart > SMALLEST_CHANGE and (same - expected).norm() * CLOSER < apart)


def _before(normalize: Normalize, statistics: Tensor) -> Tensor:
    """Return the statistics of images before their normalization."""
    mean, std = torch.tensor(normalize.mean).double(), torch.tensor(normalize.std).double()
    return torch.stack([statistics[0] * std + mean, statistics[1] * std])


def _statistics(images: Tensor) -> Tensor:
    """Return the mean and the standard deviation of each channel, of bytes on a scale of 0 to 1."""
    values = images.detach().double() / (255 if images.dtype == torch.uint8 else 1)
    return torch.stack([values.mean((0, 2, 3)), values.std((0, 2, 3), correction=0)]).cpu()
