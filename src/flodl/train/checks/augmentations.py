"""Augmentations that fit only one of training and evaluation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flodl.data import Compose, Loader, Normalize, RandomCrop, RandomFlip

from .inputs import Inputs, inputs_of
from .normalized_scales import on_other_scales_before, usual_extremes
from .scales import on_other_scales, only_first_is_normalized, scale_of

# Without `of`, so that it concerns the first part of a batch.
_NORMALIZE = re.compile(r"\bNormalize\((\[[^]]*\]), (\[[^]]*\])\)")
# Evaluation data is not normalized if it is this many times closer to the images before the normalization.
CLOSER = 3.0
# A smaller change by a normalization could as well be the difference between two batches.
SMALLEST_CHANGE = 0.2


@dataclass(frozen=True)
class TrainingInputs:
    """The normalization of the training data, and the inputs of its first batch, for later evaluations."""

    normalize: Normalize | None
    inputs: Inputs | None
    # Whether the inputs are not known, but assumed: of a run in another program.
    is_recorded: bool = False


def training_inputs(train: Loader | None, batch: Any) -> TrainingInputs | None:
    """Describe the inputs of a training with the first batch of its loader."""
    if train is None:
        return None
    normalize = _normalize_of(train.arguments()["augment"])
    return TrainingInputs(normalize, inputs_of(batch, None if normalize is None else normalize.of))


def as_recorded(augment: Any) -> TrainingInputs | None:
    """Return the normalization in the record of a training; its inputs are assumed to be standardized.

    >>> as_recorded(["RandomCrop(2)", "Normalize([0.5], [0.25])"]).normalize
    Normalize([0.5], [0.25])
    """
    found = _NORMALIZE.search(augment if isinstance(augment, str) else json.dumps(augment))
    if found is None:
        return None
    mean, std = map(json.loads, found.groups())
    normalize, channels = Normalize(mean, std), len(mean)
    extremes = usual_extremes(normalize)
    inputs = Inputs(
        of=None,
        shape=(1, channels, 1, 1),
        is_float=True,
        statistics=torch.tensor([[0.0] * channels, [1.0] * channels]).double(),
        extremes=extremes,
        low=float(extremes.min()),
        high=float(extremes.max()),
        negative=0.5,
        has_many_values=True,
    )
    return TrainingInputs(normalize, inputs, is_recorded=True)


def random_changes(evaluation: Loader | None) -> Iterator[str]:
    """Yield a warning if the evaluation data is randomly augmented."""
    changes = [] if evaluation is None else _parts(evaluation.arguments()["augment"])
    if random := [repr(one) for one in changes if _is_random(one)]:
        yield (
            f"the evaluation loader changes images at random ({', '.join(random)}), so the metrics "
            "are not those of the data itself. Leave that out of its augment; keep Normalize."
        )


def unlike_training(
    trained: TrainingInputs | None, evaluation: Loader | None, eval_batch: Any, *, call: str
) -> Iterator[str]:
    """Yield a warning if the evaluation data is normalized unlike the training data.

    The first batches of both are compared: data may be normalized in other places than a loader. `call` is
    how to pass a loader for the evaluation.
    """
    if trained is None or evaluation is None:
        return
    ours, theirs, inputs = trained.normalize, _normalize_of(evaluation.arguments()["augment"]), trained.inputs
    if inputs is None:
        return
    eval_inputs = inputs_of(eval_batch, inputs.of if theirs is None else theirs.of)
    if eval_inputs is None or (inputs.of != eval_inputs.of and None not in (inputs.of, eval_inputs.of)):
        return
    if ours is not None and theirs is not None:
        yield from _unlike_after_both(ours, inputs, theirs, eval_inputs)
        return
    if ours is not None and (found := _why_left_out(ours, inputs, eval_inputs)):
        yield (
            f"the training data is normalized by {ours!r}, and the evaluation data is not: its first "
            f"batch {found} a loader with the same Normalize: "
            f"{call.format(f'Loader(data, batch_size, shuffle=False, augment={ours!r})')}."
        )
    elif theirs is not None and (found := _why_left_out(theirs, eval_inputs, inputs)):
        yield (
            f"the evaluation data is normalized by {theirs!r}, and the training data is not: its first "
            f"batch {found} Loader(data, batch_size, augment={theirs!r}) as training data."
        )
    elif not trained.is_recorded:
        yield from on_other_scales(inputs, eval_inputs)


def _unlike_after_both(ours: Normalize, trained: Inputs, theirs: Normalize, evaluated: Inputs) -> list[str]:
    """Return a warning if the same images would be different after both normalizations."""
    found = [*on_other_scales_before(ours, trained, theirs, evaluated)]
    if not found and _is_other(ours, theirs, trained, evaluated):
        found.append(
            f"the training data is normalized by {ours!r} and the evaluation data by {theirs!r}, and "
            "their first batches have different statistics. Use the same Normalize for both."
        )
    return found


def _normalize_of(augment: Any) -> Normalize | None:
    return next((one for one in _parts(augment) if isinstance(one, Normalize)), None)


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
    return isinstance(augment, RandomCrop | RandomFlip) and augment.is_random


def _why_left_out(normalize: Normalize, normalized: Inputs, other: Inputs) -> str:
    """Return how others show that they are not normalized like these, and advice; "" if they do not."""
    if _is_left_out(normalize, normalized, other):
        return "has the statistics of images before the normalization. Pass"
    if not other.is_float or not only_first_is_normalized(normalized, other):
        return ""
    divide = scale_of(other.low, other.high) == 255 and max(normalize.mean) <= 1
    advice = "Divide the images by 255, and pass" if divide else "Pass"
    return f"has values from {other.low:.3g} to {other.high:.3g}. {advice}"


def _is_left_out(normalize: Normalize, trained: Inputs, evaluated: Inputs) -> bool:
    """Return whether evaluation images resemble the images of the training before the normalization.

    >>> images = torch.rand(8, 1, 4, 4)
    >>> raw, normalized = inputs_of(images, None), inputs_of((images - 0.5) / 0.1, None)
    >>> normalize = Normalize([0.5], [0.1])
    >>> _is_left_out(normalize, normalized, raw), _is_left_out(normalize, normalized, normalized)
    (True, False)
    """
    if not trained.is_float or not _have_channels(normalize, trained, evaluated):
        return False
    after, found = trained.statistics, evaluated.statistics
    before = _before(normalize, after)
    is_changed = (before - after).norm() > SMALLEST_CHANGE
    return bool(is_changed and (found - before).norm() * CLOSER < (found - after).norm())


def _is_other(ours: Normalize, theirs: Normalize, trained: Inputs, evaluated: Inputs) -> bool:
    """Return whether evaluation images would resemble those of the training with its normalization only."""
    if len(ours.mean) != len(theirs.mean) or not _have_channels(ours, trained, evaluated):
        return False
    expected, found = trained.statistics, evaluated.statistics
    mean, std = torch.tensor(ours.mean).double(), torch.tensor(ours.std).double()
    before = _before(theirs, found)
    same = torch.stack([(before[0] - mean) / std, before[1] / std])
    apart = (found - expected).norm()
    return bool(apart > SMALLEST_CHANGE and (same - expected).norm() * CLOSER < apart)


def _have_channels(normalize: Normalize, *inputs: Inputs) -> bool:
    return all(one.is_images and one.shape[1] == len(normalize.mean) for one in inputs)


def _before(normalize: Normalize, statistics: Tensor) -> Tensor:
    """Return the statistics of images before their normalization."""
    mean, std = torch.tensor(normalize.mean).double(), torch.tensor(normalize.std).double()
    return torch.stack([statistics[0] * std + mean, statistics[1] * std])
