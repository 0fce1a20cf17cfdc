"""Samples put into one batch, as torch does it or with lists of numbers as rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.collate import collate as collated
from torch.utils.data._utils.collate import default_collate_fn_map

from flodl.core.errors import DataError

from .columns import native

Rules = Mapping[type | tuple[type, ...], Callable[..., Any]]


def stacked(samples: list[Any], *, numbers: Sequence[int] | None = None) -> Any:
    """Put samples into a batch as torch does; a batch of tuples is a tuple here, not a list.

    `numbers` are those of the samples in their source, for the words of an error.

    >>> stacked([(1, 2.0), (3, 4.0)])
    (tensor([1, 3]), tensor([2., 4.], dtype=torch.float64))
    """
    return _batch_of(samples, numbers, {**default_collate_fn_map, np.ndarray: _arrays})


def stacked_rows(samples: list[Any], *, numbers: Sequence[int] | None = None) -> Any:
    """Do the same, but a list of numbers within a sample is a row, not so many parts.

    >>> stacked_rows([{"ids": [1, 2, 3]}, {"ids": [4, 5, 6]}])
    {'ids': tensor([[1, 2, 3],
            [4, 5, 6]])}
    """
    rules = {**default_collate_fn_map, np.ndarray: _arrays, list: _lists}
    if isinstance(samples[0], list):  # a sample itself is the list of its parts
        return _batch_of([tuple(sample) for sample in samples], numbers, rules)
    return _batch_of(samples, numbers, rules)


def _batch_of(samples: list[Any], numbers: Sequence[int] | None, rules: Rules) -> Any:
    try:
        batch = collated(samples, collate_fn_map=dict(rules))
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        told = str(error).strip() or type(error).__name__
        told = f"one has no {told}" if isinstance(error, KeyError) else told.splitlines()[0].rstrip(".")
        why = _lacking(samples, numbers) or _ragged(samples) or told
        raise DataError(
            f"{len(samples)} samples cannot be put into one batch: {why}. "
            "Give collate= a function that does it, for example by padding. Columns come as a tuple (x, y), "
            "a list holds samples."
        ) from error
    return tuple(batch) if isinstance(batch, list) else batch


def _lacking(samples: list[Any], numbers: Sequence[int] | None) -> str:
    """Say which sample lacks a name that the first one has."""
    if not all(isinstance(sample, Mapping) for sample in samples):
        return ""
    called = [f"{at} of the batch" for at in range(len(samples))] if numbers is None else list(numbers)
    for at, sample in enumerate(samples):
        for name in samples[0]:
            if name not in sample:
                return f"sample {called[at]} has no {name!r}, which sample {called[0]} has"
    return ""


def _ragged(samples: list[Any]) -> str:
    """Say which name stands for lists of unequal lengths."""
    if not all(isinstance(sample, Mapping) for sample in samples):
        return ""
    for name in samples[0]:
        lengths = [len(sample[name]) for sample in samples if isinstance(sample[name], list)]
        if lengths and min(lengths) != max(lengths):
            return f"{name!r} has lists of {min(lengths)} to {max(lengths)} items"
    return ""


def _arrays(batch: Sequence[Any], *, collate_fn_map: dict[Any, Any]) -> Any:
    """Put arrays together, also those that torch cannot share the memory of, such as flipped ones."""
    ready = [native(array) if isinstance(array, np.ndarray) else array for array in batch]
    return default_collate_fn_map[np.ndarray](ready, collate_fn_map=collate_fn_map)


def _lists(batch: Sequence[Any], *, collate_fn_map: dict[Any, Any]) -> Any:
    """Make rows of lists of numbers; other lists are taken apart as torch does it."""
    lengths = [len(value) for value in batch]
    if min(lengths) != max(lengths):
        raise RuntimeError(f"there are lists of {min(lengths)} to {max(lengths)} items")
    if _begins_with_number(batch[0]):
        try:
            rows = np.array(batch)
        except ValueError:
            raise RuntimeError("there are lists of unequal lengths within lists") from None
        if rows.dtype.kind in "biuf":
            return torch.from_numpy(rows)
    return [collated(parts, collate_fn_map=collate_fn_map) for parts in zip(*batch)]


def _begins_with_number(value: Any) -> bool:
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, bool | int | float | np.number | np.bool_)
