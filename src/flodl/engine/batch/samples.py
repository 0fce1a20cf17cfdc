"""How many samples a batch has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from .tree import leaves_of, map_tensors


def num_samples(batch: tuple[Any, ...]) -> int:
    """Return the leading length of the first tensor or array; 1 if there is none.

    >>> import torch
    >>> num_samples((torch.zeros(32, 3), torch.zeros(32)))
    32
    """
    leaves = batch if batch and type(batch[0]) is Tensor else leaves_of(batch)
    return next(_lengths(leaves), 1)


def leading_lengths(batch: tuple[Any, ...]) -> list[int]:
    """Give the leading lengths of the tensors and arrays of a batch, each once, that of the first one first.

    >>> import torch
    >>> leading_lengths((torch.zeros(4, 3), torch.zeros(4), torch.zeros(9)))
    [4, 9]
    """
    leaves = batch if all(type(leaf) is Tensor for leaf in batch) else leaves_of(batch)
    return list(dict.fromkeys(_lengths(leaves)))


def _lengths(leaves: Iterable[Any]) -> Iterator[int]:
    for leaf in leaves:
        if isinstance(leaf, Tensor) and leaf.ndim > 0:
            yield int(leaf.size(0))
        elif isinstance(leaf, np.ndarray) and leaf.ndim > 0:
            yield int(leaf.shape[0])


def ambiguous_samples(lengths: Sequence[int]) -> str:
    """Say what a batch weighs whose tensors differ in their leading lengths, and how to tell.

    >>> ambiguous_samples([7, 4])
    'the first tensor of a batch has 7 rows and others have 4; it weighs as 7 samples, unless told otherwise'
    """
    others = ", ".join(map(str, lengths[1:]))
    return (
        f"the first tensor of a batch has {lengths[0]} rows and others have {others}; "
        f"it weighs as {lengths[0]} samples, unless told otherwise"
    )


def why_not_splittable(batch: tuple[Any, ...], samples: int) -> str | None:
    """Say why a batch cannot be cut or filled along its samples; None where every tensor has a row for each.

    >>> import torch
    >>> why_not_splittable((torch.zeros(7, 4, 3), torch.zeros(4)), 4)
    'it has 4 samples, and tensors of it have 7 rows'
    """
    lengths = leading_lengths(batch)
    if not lengths and samples > 1:
        return f"it has {samples} samples, and no tensor with rows"
    others = [length for length in lengths if length != samples]
    if not others:
        return None
    return f"it has {samples} samples, and tensors of it have {' and '.join(map(str, others))} rows"


def split_batch(batch: tuple[Any, ...], count: int) -> list[tuple[Any, ...]]:
    """Cut a batch into at most `count` parts along its samples; what has no rows goes to every part.

    >>> import torch
    >>> [part[0].tolist() for part in split_batch((torch.arange(5), "name"), 2)]
    [[0, 1, 2], [3, 4]]
    """
    total = num_samples(batch)
    size = max(1, -(-total // count))

    def cut(start: int) -> tuple[Any, ...]:
        part: tuple[Any, ...] = map_tensors(
            lambda leaf: leaf[start : start + size] if leaf.ndim > 0 else leaf, batch
        )
        return part

    return [cut(start) for start in range(0, total, size)] or [batch]
