"""A warning for a torch DataLoader whose workers all yield the same samples of an iterable dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader, IterableDataset


class RepeatedBatches:
    """Compare the first batches of the workers of a DataLoader, which returns one batch of each in turn.

    Random or constant data is not reported: batches are the same only if all values are, and a batch with
    equal rows counts only if the next batch of the same worker differs.

    >>> repeated = RepeatedBatches(2)
    >>> [repeated.add(torch.tensor(batch)) for batch in ([1, 2], [1, 2], [3, 4])]
    [False, True, False]
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._num_seen = 0
        self._first: list[Any] | None = None

    def add(self, batch: Any) -> bool:
        """Add the next batch, and return whether it shows that all workers yield the same samples."""
        self._num_seen += 1
        if self._num_seen == 1:
            self._first = _values(batch, copy=True)
            return False
        if self._first is None:
            return False
        is_same = _equal(self._first, _values(batch))
        is_next_of_first = self._num_seen > self._num_workers
        if is_next_of_first or not is_same:
            self._first = None
            return is_next_of_first and not is_same
        if self._num_seen == self._num_workers and _has_different_rows(self._first):
            self._first = None
            return True
        return False


def warning_about_repeats(dataset: Any, num_workers: int) -> str:
    """Return the warning for a dataset whose samples are yielded by each worker."""
    name = type(dataset).__name__
    return (
        f"each of the {num_workers} workers of the DataLoader yields the same samples of {name}, so an epoch "
        f"has every sample {num_workers} times. In {name}.__iter__, yield only the part for torch.utils.data."
        "get_worker_info().id, or use num_workers=1."
    )


def repeated_batches(source: Any) -> RepeatedBatches | None:
    """Return the comparison for a source, None if several workers cannot repeat its samples."""
    if not isinstance(source, DataLoader) or not isinstance(source.dataset, IterableDataset):
        return None
    # With in_order=False, batches that follow each other may be of one worker.
    is_in_turn = source.num_workers > 1 and getattr(source, "in_order", True)
    return RepeatedBatches(source.num_workers) if is_in_turn else None


def _values(batch: Any, *, copy: bool = False) -> list[Any] | None:
    """Return the values in a batch, or None if some cannot be compared."""
    values: list[Any] = []
    for value in tree_flatten(batch)[0]:
        if isinstance(value, Tensor) and value.layout is torch.strided and not value.is_nested:
            # The program may write to a batch.
            values.append(value.detach().clone() if copy else value.detach())
        elif isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            values.append(torch.tensor(value) if copy else torch.as_tensor(value))
        elif isinstance(value, str | bytes | int | float):
            values.append(value)
        else:
            return None
    return values


def _equal(first: list[Any], other: list[Any] | None) -> bool:
    if other is None or len(first) != len(other):
        return False
    return all(_is_equal(a, b) for a, b in zip(first, other))


def _is_equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and bool(a == b)


def _has_different_rows(values: list[Any]) -> bool:
    tensors = [value for value in values if isinstance(value, Tensor) and value.ndim]
    return any(bool((value != value[:1]).any()) for value in tensors)
