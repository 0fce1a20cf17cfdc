"""Checks of the indices that a sampler returns."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import WeightedRandomSampler

from flodl.core.errors import DataError
from flodl.core.formats import a_type


def as_index_tensor(order: Iterable[Any]) -> Tensor:
    """Return the indices of an iterable as a tensor."""
    try:
        return torch.as_tensor([operator.index(index) for index in order], dtype=torch.int64)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"the sampler returned something that is not a sample index: {error}. Return single indices; "
            "the loader groups them into batches of batch_size."
        ) from None


def check_weights(sampler: object, count: int) -> None:
    """Raise if torch's weighted sampler does not have one weight for each sample.

    With fewer weights, for example of classes, it would draw the first samples only.

    >>> check_weights(WeightedRandomSampler([1.0, 5.0], num_samples=8), 8)
    Traceback (most recent call last):
    flodl.core.errors.DataError: the WeightedRandomSampler has 2 weights for 8 samples, so it would draw ...
    """
    if isinstance(sampler, WeightedRandomSampler) and len(sampler.weights) != count:
        effect = ", so it would draw the first of them only" if len(sampler.weights) < count else ""
        raise DataError(
            f"the WeightedRandomSampler has {len(sampler.weights)} weights for {count} samples{effect}. Pass "
            "one weight for each sample. If you have class weights, pass class_weights[labels]."
        )


def check_indices(indices: Any, count: int, epoch: int) -> None:
    """Raise unless this is a tensor of sample indices."""
    if not isinstance(indices, Tensor):
        raise DataError(
            f"the sampler returned {a_type(indices)} for epoch {epoch}. "
            "Return a 1-d tensor of sample indices."
        )
    if indices.dim() != 1 or indices.dtype.is_floating_point or len(indices) == 0:
        raise DataError(
            f"the sampler returned {tuple(indices.shape)} {indices.dtype} for epoch {epoch}. "
            "Return a non-empty list of sample indices."
        )
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= count:
        wrong = low if low < 0 else high
        raise DataError(
            f"the sampler returned index {wrong} for {count} samples. Return indices from 0 to {count - 1}."
        )


def check_length(actual: int, expected: int | None, epoch: int) -> None:
    """Raise if a sampler returned more or fewer indices than its length says."""
    if expected is not None and actual != expected:
        raise DataError(
            f"the sampler returned {actual} indices for epoch {epoch}, but its length is {expected}. "
            "Correct its length: positions, progress and schedules depend on it."
        )


def check_not_mask(order: Any, *, what: str = "the sampler", argument: str = "sampler") -> None:
    """Raise for a boolean mask, whose values would be read as the indices 1 and 0."""
    if isinstance(order, list | tuple):
        is_mask = any(isinstance(item, bool | np.bool_) for item in order)
        instead = "[index for index, selected in enumerate(mask) if selected]"
    else:
        dtype = str(getattr(order, "dtype", ""))
        is_mask = dtype in ("torch.bool", "bool")
        instead = "mask.nonzero().flatten()" if dtype == "torch.bool" else "numpy.flatnonzero(mask)"
    if is_mask:
        raise DataError(
            f"{what} is a mask of {len(order)} booleans, not a list of sample indices. "
            f"Use {argument}={instead}."
        )


def check_no_generator(sampler: Any) -> None:
    """Raise if a torch sampler has its own generator: its order would depend on earlier draws."""
    inner = getattr(sampler, "sampler", None)
    if getattr(sampler, "generator", None) is not None or getattr(inner, "generator", None) is not None:
        raise DataError(
            f"the {type(sampler).__name__} has its own generator, so a resumed run would see a different "
            "order. Remove the generator: flodl seeds the order from seed and epoch."
        )
