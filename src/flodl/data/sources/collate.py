"""Collate samples into a batch, as torch does or with lists of numbers as rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate as torch_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from flodl.core.errors import DataError

from .columns import to_native
from .dense import check_not_masked

Rules = Mapping[type | tuple[type, ...], Callable[..., Any]]


def collate_samples(samples: list[Any], *, indices: Sequence[int] | None = None) -> Any:
    """Collate samples as torch does, except that a batch of tuples is a tuple, not a list.

    `indices` are those of the samples in their source, for error messages.

    >>> collate_samples([(1, 2.0), (3, 4.0)])
    (tensor([1, 3]), tensor([2., 4.], dtype=torch.float64))
    """
    return _collate(samples, indices, _rules())


def collate_lists_as_rows(samples: list[Any], *, indices: Sequence[int] | None = None) -> Any:
    """Do the same, but treat a list of numbers in a sample as a row, not as separate parts.

    >>> collate_lists_as_rows([{"ids": [1, 2, 3]}, {"ids": [4, 5, 6]}])
    {'ids': tensor([[1, 2, 3],
            [4, 5, 6]])}
    """
    rules = {**_rules(), list: _collate_lists}
    if isinstance(samples[0], list):  # a sample is itself a list of parts
        return _collate([tuple(sample) for sample in samples], indices, rules)
    return _collate(samples, indices, rules)


def _collate(samples: list[Any], indices: Sequence[int] | None, rules: Rules) -> Any:
    try:
        batch = torch_collate(samples, collate_fn_map=dict(rules))
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        if missing := _missing_sample(samples, indices):
            raise DataError(f"{len(samples)} samples cannot be collated into a batch: {missing}") from error
        text = str(error).strip() or type(error).__name__
        text = f"one has no {text}" if isinstance(error, KeyError) else text.splitlines()[0].rstrip(".")
        reason = _missing_name(samples, indices) or _unequal_lengths(samples) or text
        advice = (
            "Pass a function as collate=, for example one that pads. Pass columns as a tuple (x, y); a list "
            "contains samples."
        )
        if reason.startswith("default_collate: batch must contain"):
            advice = (
                "Return tensors, arrays or numbers from the dataset; an image, for example, as a tensor. "
                "Pass a function as collate= to convert samples of other kinds."
            )
        raise DataError(
            f"{len(samples)} samples cannot be collated into a batch: {reason}. {advice}"
        ) from error
    return tuple(batch) if isinstance(batch, list) else batch


def _missing_sample(samples: list[Any], indices: Sequence[int] | None) -> str:
    """Return which sample is None or contains None, and what to do; or ''.

    >>> _missing_sample([(1, 2), (3, None)], [5, 8])
    'sample 8 has None as item 1. The dataset, or a transform, returned it: return a value for ...'
    """
    for label, sample in zip(_labels(samples, indices), samples):
        what = "is None" if sample is None else ""
        if isinstance(sample, Mapping):
            what = next((f"has None as {key!r}" for key in sample if sample[key] is None), "")
        elif isinstance(sample, tuple | list):
            what = next((f"has None as item {at}" for at, part in enumerate(sample) if part is None), "")
        if what:
            return (
                f"sample {label} {what}. The dataset, or a transform, returned it: return a value for each "
                "sample, or leave the sample out, with torch.utils.data.Subset for example."
            )
    return ""


def _labels(samples: list[Any], indices: Sequence[int] | None) -> list[Any]:
    return [f"{at} of the batch" for at in range(len(samples))] if indices is None else list(indices)


def _missing_name(samples: list[Any], indices: Sequence[int] | None) -> str:
    """Return which sample lacks a name that the first one has, or ''."""
    if not all(isinstance(sample, Mapping) for sample in samples):
        return ""
    labels = _labels(samples, indices)
    for label, sample in zip(labels, samples):
        for name in samples[0]:
            if name not in sample:
                return f"sample {label} has no {name!r}, which sample {labels[0]} has"
    return ""


def _unequal_lengths(samples: list[Any]) -> str:
    """Return which name has lists of unequal lengths, or ''."""
    if not all(isinstance(sample, Mapping) for sample in samples):
        return ""
    for name in samples[0]:
        lengths = [len(sample[name]) for sample in samples if isinstance(sample[name], list)]
        if lengths and min(lengths) != max(lengths):
            return f"{name!r} has lists of {min(lengths)} to {max(lengths)} items"
    return ""


def _rules() -> dict[Any, Callable[..., Any]]:
    return {**default_collate_fn_map, Tensor: _collate_tensors, np.ndarray: _collate_arrays}


def _collate_tensors(batch: Sequence[Any], *, collate_fn_map: dict[Any, Any]) -> Any:
    """Collate tensors as torch does, but with the same errors in a worker process.

    In a worker, torch writes to shared memory of a size that fits only tensors of equal shape.
    """
    first = batch[0]
    if get_worker_info() is not None and first.layout is torch.strided and not first.is_nested:
        key = first.shape, first.dtype
        if any(not isinstance(one, Tensor) or (one.shape, one.dtype) != key for one in batch):
            return torch.stack([*batch])
    return default_collate_fn_map[Tensor](batch, collate_fn_map=collate_fn_map)


def _collate_arrays(batch: Sequence[Any], *, collate_fn_map: dict[Any, Any]) -> Any:
    """Collate arrays, including those that torch does not accept, such as flipped ones."""
    for array in batch:
        check_not_masked(array, "an array in a sample")
    arrays = [to_native(array) if isinstance(array, np.ndarray) else array for array in batch]
    return default_collate_fn_map[np.ndarray](arrays, collate_fn_map=collate_fn_map)


def _collate_lists(batch: Sequence[Any], *, collate_fn_map: dict[Any, Any]) -> Any:
    """Turn lists of numbers into rows; collate other lists item by item, as torch does."""
    lengths = [len(value) for value in batch]
    if min(lengths) != max(lengths):
        raise RuntimeError(f"there are lists of {min(lengths)} to {max(lengths)} items")
    if _starts_with_number(batch[0]):
        try:
            rows = np.array(batch)
        except ValueError:
            raise RuntimeError("there are lists of unequal lengths within lists") from None
        if rows.dtype.kind in "biuf":
            return torch.from_numpy(rows)
    return [torch_collate(parts, collate_fn_map=collate_fn_map) for parts in zip(*batch)]


def _starts_with_number(value: Any) -> bool:
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, bool | int | float | np.number | np.bool_)
