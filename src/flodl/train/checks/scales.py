"""Inputs of training and evaluation on different scales, where not both loaders have a `Normalize`."""

from __future__ import annotations

from collections.abc import Iterator

from .inputs import Inputs

# Fewer values, or rows of a table, may look different by chance.
NUM_VALUES = 256
NUM_ROWS = 16
# Inputs are centered if their smallest value is at most LOW, and at least this fraction is below 0.
LOW, NEGATIVE = -0.3, 0.1
# How close the smallest and the largest value come to the ends of a scale.
CLOSE = 0.02
# Noise changes the mean by less than this fraction of the scale, and increases the standard deviation less
# than this: dividing values of 0 to 1 by theirs, which is at most 0.5, at least doubles it.
SAME_MEAN, NOISE = 0.1, 2.2
# A mean or standard deviation this large is far from that of a standardized column.
FAR = 10.0
# Images up to 255 that were normalized like images up to 1 have about 255 times their standard deviation.
FACTORS = (100.0, 650.0)


def on_other_scales(trained: Inputs | None, evaluated: Inputs | None) -> Iterator[str]:
    """Yield a warning if only training or only evaluation is normalized, or one is up to 1, one up to 255.

    Both have the same distribution in nearly every program, so only differences that no split of one dataset
    has are reported.
    """
    if trained is None or evaluated is None or not (trained.is_float and evaluated.is_float):
        return
    scales = scale_of(trained.low, trained.high), scale_of(evaluated.low, evaluated.high)
    if trained.is_images and evaluated.is_images and sorted(scales) == [1, 255]:
        yield (
            f"the training images have values from 0 to {scales[0]} and the evaluation images from 0 to "
            f"{scales[1]}. Divide those up to 255 by 255."
        )
    elif only_first_is_normalized(trained, evaluated):
        yield _text("training", trained, "evaluation", evaluated)
    elif only_first_is_normalized(evaluated, trained):
        yield _text("evaluation", evaluated, "training", trained)
    elif has_larger := _larger(trained, evaluated):
        yield (
            f"the training images have values from {trained.low:.3g} to {trained.high:.3g} and the "
            f"evaluation images from {evaluated.low:.3g} to {evaluated.high:.3g}: the {has_larger} images "
            "seem to have had values up to 255 when they were normalized. Divide them by 255 first."
        )


def _text(normalized: str, ours: Inputs, raw: str, theirs: Inputs) -> str:
    return (
        f"the {normalized} data seems to be normalized, but not the {raw} data: the first batches have "
        f"values from {ours.low:.3g} to {ours.high:.3g} and from {theirs.low:.3g} to {theirs.high:.3g}. "
        "Normalize both in the same way."
    )


def scale_of(low: float, high: float, slack: float = 0.0) -> int:
    """Return the usual upper limit of image values, 1 or 255; 0 if it is neither.

    `slack` is how far values may be outside, as a fraction of the scale.

    >>> scale_of(0.0, 0.9), scale_of(0.0, 200.0), scale_of(-0.1, 0.9), scale_of(-0.1, 0.9, slack=0.5)
    (1, 255, 0, 1)
    """
    if low >= -slack and 0 < high <= 1 + slack:
        return 1
    return 255 if low >= -slack * 255 and 100 < high <= 255 * (1 + slack) else 0


def only_first_is_normalized(ours: Inputs, theirs: Inputs) -> bool:
    """Return whether inputs are normalized, and others certainly are not."""
    if len(ours.shape) != len(theirs.shape) or ours.shape[1] != theirs.shape[1]:
        return False
    is_centered = ours.low <= LOW and ours.negative >= NEGATIVE
    return (is_centered and _fills_a_scale(theirs) and not _is_noisy(ours, theirs)) or (
        _is_standardized(ours) and _is_far(theirs)
    )


def _fills_a_scale(inputs: Inputs) -> bool:
    """Return whether the values reach from 0 to 1, or to 255, and not beyond."""
    scale = scale_of(inputs.low, inputs.high)
    if not scale or not inputs.has_many_values or inputs.num_values < NUM_VALUES:
        return False
    lowest = CLOSE * scale
    return inputs.low <= lowest and (scale == 255 or inputs.high >= 1 - CLOSE)


def _is_noisy(ours: Inputs, theirs: Inputs) -> bool:
    """Return whether inputs may be others with noise: the mean is the same and the spread a little larger."""
    (mean, std), (other_mean, other_std) = _mean_and_std(ours), _mean_and_std(theirs)
    scale = scale_of(theirs.low, theirs.high)
    return abs(mean - other_mean) < SAME_MEAN * scale and other_std / NOISE < std < other_std * NOISE


def _mean_and_std(inputs: Inputs) -> tuple[float, float]:
    """Return the mean and the standard deviation of all values together."""
    means, stds = inputs.statistics
    variance = stds.square().mean() + means.var(correction=0)
    return float(means.mean()), float(variance.sqrt())


def _larger(trained: Inputs, evaluated: Inputs) -> str:
    """Return which images have about 255 times the standard deviation of the others, which are normalized."""
    for larger, other, name in ((trained, evaluated, "training"), (evaluated, trained, "evaluation")):
        if not (larger.is_images and other.is_images and larger.shape[1] == other.shape[1]):
            return ""
        mean, std = other.statistics
        is_normalized = bool((mean.abs() < 3).all() and (std > 0.1).all() and (std < 3).all())
        factors = larger.statistics[1] / std
        if is_normalized and bool((factors > FACTORS[0]).all() and (factors < FACTORS[1]).all()):
            return name
    return ""


def _is_standardized(inputs: Inputs) -> bool:
    """Return whether nearly every column of a table has a mean near 0 and a standard deviation near 1."""
    if len(inputs.shape) != 2 or inputs.shape[0] < NUM_ROWS or inputs.shape[1] < 2:
        return False
    mean, std = inputs.statistics
    is_near = (mean.abs() < 0.5) & (std > 0.5) & (std < 1.6)
    return bool(is_near.double().mean() >= 0.9)


def _is_far(inputs: Inputs) -> bool:
    """Return whether at least half of the columns of a table are far from standardized."""
    mean, std = inputs.statistics
    return inputs.shape[0] >= NUM_ROWS and bool(((mean.abs() > FAR) | (std > FAR)).double().mean() >= 0.5)
