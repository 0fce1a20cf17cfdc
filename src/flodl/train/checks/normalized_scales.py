"""Images of training and evaluation on different scales before their `Normalize`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from flodl.data import Normalize

from .inputs import Inputs
from .scales import scale_of

# How far undone values may be outside of their scale: by rounding, and by augmentations such as a change of
# brightness. One of the two scales must match almost exactly.
ROUNDING, AUGMENTED = 0.02, 0.5
# Normalized images have the same scale if their ranges differ by no more than this factor.
SAME = 16.0


def on_other_scales_before(
    ours: Normalize, trained: Inputs, theirs: Normalize, evaluated: Inputs
) -> Iterator[str]:
    """Yield a warning if one of both was up to 1 (or bytes) and the other up to 255 before the normalization.

    A different `Normalize` for each may be what makes them the same.
    """
    scales = _scales(ours, trained, theirs, evaluated)
    if scales is None:
        return
    low, high = ("training", "evaluation") if scales[0] == 1 else ("evaluation", "training")
    advice = f"Divide the {high} images by 255."
    if min((ours if scales[0] == 1 else theirs).mean) > 1:
        advice = f"Multiply the {low} images by 255."
    yield (
        f"before Normalize, the training images have values from 0 to {scales[0]} and the evaluation images "
        f"from 0 to {scales[1]} (only bytes are scaled to 0 to 1). {advice}"
    )


def _scales(ours: Normalize, trained: Inputs, theirs: Normalize, evaluated: Inputs) -> tuple[int, int] | None:
    """Return the scales of both before the normalization if they differ, and still do after it."""
    pairs = (ours, trained), (theirs, evaluated)
    for slacks in ((ROUNDING, AUGMENTED), (AUGMENTED, ROUNDING)):
        one, other = (_scale_before(*pair, slack) for pair, slack in zip(pairs, slacks))
        if {one, other} == {1, 255}:
            factor = one * sum(theirs.std) / (other * sum(ours.std))
            return None if 1 / SAME < factor < SAME else (one, other)
    return None


def _scale_before(normalize: Normalize, inputs: Inputs, slack: float) -> int:
    if not inputs.is_images or not inputs.is_float or inputs.shape[1] != len(normalize.mean):
        return 0
    lowest, highest = undo(normalize, inputs.extremes)
    return scale_of(float(lowest.min()), float(highest.max()), slack)


def undo(normalize: Normalize, values: Tensor) -> Tensor:
    """Return values of each channel before their normalization.

    >>> undo(Normalize([0.5], [0.25]), torch.tensor([[-2.0], [2.0]]).double()).tolist()
    [[0.0], [1.0]]
    """
    mean, std = torch.tensor(normalize.mean).double(), torch.tensor(normalize.std).double()
    return values * std + mean


def usual_extremes(normalize: Normalize) -> Tensor:
    """Return the lowest and the highest value of each channel after a normalization of usual images.

    Its statistics tell the scale of the images: from 0 to 1, or to 255. If not, the values are -1 and 1.

    >>> usual_extremes(Normalize([0.5], [0.25])).tolist(), usual_extremes(Normalize([0.0], [1.0])).tolist()
    ([[-2.0], [2.0]], [[-1.0], [1.0]])
    """
    mean, std = torch.tensor(normalize.mean).double(), torch.tensor(normalize.std).double()
    if mean.min() > 0 and mean.max() <= 1 and std.max() <= 0.5:
        return torch.stack([-mean / std, (1 - mean) / std])
    if mean.min() > 1 and std.max() > 10:
        return torch.stack([-mean / std, (255 - mean) / std])
    return torch.stack([-torch.ones_like(mean), torch.ones_like(mean)])
