"""The number of samples in a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from .tree import leaves_of, map_tensors


def num_samples(batch: tuple[Any, ...]) -> int:
    """Return the leading length of the first tensor or array; 1 if there is none.

    A `PackedSequence` has as many samples as sequences.

    >>> import torch
    >>> packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(7, 3), torch.zeros(4, 3)])
    >>> num_samples((torch.zeros(32, 3), torch.zeros(32))), num_samples((packed, torch.zeros(2)))
    (32, 2)
    """
    leaves = batch if batch and type(batch[0]) is Tensor else _parts_of(batch)
    return next(_lengths(leaves), 1)


def leading_lengths(batch: tuple[Any, ...]) -> list[int]:
    """Return the distinct lengths of the tensors and arrays of a batch, in order of appearance.

    >>> import torch
    >>> leading_lengths((torch.zeros(4, 3), torch.zeros(4), torch.zeros(9)))
    [4, 9]
    """
    leaves = batch if all(type(leaf) is Tensor for leaf in batch) else _parts_of(batch)
    return list(dict.fromkeys(_lengths(leaves)))


def other_rows(batch: tuple[Any, ...]) -> tuple[int, int] | None:
    """Return the rows of the first tensor and those of all others, if two or more others have the same.

    >>> import torch
    >>> edges, x, y = torch.zeros(2, 9), torch.zeros(4, 3), torch.zeros(4)
    >>> other_rows((edges, x, y)), other_rows((edges, y)), other_rows((x, y))
    ((2, 4), None, None)
    """
    lengths = list(_lengths(_parts_of(batch)))
    is_shared = len(lengths) > 2 and len(set(lengths[1:])) == 1 and lengths[1] != lengths[0]
    return (lengths[0], lengths[1]) if is_shared else None


def shapes_in(batch: tuple[Any, ...]) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors and arrays of a batch that have rows.

    >>> import torch
    >>> shapes_in((torch.zeros(4, 3), torch.zeros(()), "name"))
    [(4, 3)]
    """
    found = (leaf for leaf in leaves_of(batch) if isinstance(leaf, Tensor | np.ndarray))
    return [tuple(leaf.shape) for leaf in found if leaf.ndim > 0]


def _parts_of(batch: tuple[Any, ...]) -> Iterator[Any]:
    """Yield what has samples: the leaves, and each packed sequence as a whole."""
    return leaves_of(batch, is_leaf=_is_packed_sequence)


def _is_packed_sequence(part: Any) -> bool:
    return isinstance(part, PackedSequence)


def _lengths(leaves: Iterable[Any]) -> Iterator[int]:
    for leaf in leaves:
        if isinstance(leaf, Tensor) and leaf.ndim > 0:
            yield int(leaf.size(0))
        elif isinstance(leaf, np.ndarray) and leaf.ndim > 0:
            yield int(leaf.shape[0])
        elif isinstance(leaf, PackedSequence):
            yield int(leaf.batch_sizes[0])  # which is always on the host


def ambiguous_samples(lengths: Sequence[int]) -> str:
    """Return a warning about a batch whose tensors have different lengths.

    >>> print(ambiguous_samples([7, 4]))
    the first tensor of a batch has 7 rows and others have 4; it counts as 7 samples...
    """
    others = ", ".join(map(str, lengths[1:]))
    return (
        f"the first tensor of a batch has {lengths[0]} rows and others have {others}; it counts as "
        f"{lengths[0]} samples. If this is wrong, put a tensor with one row for each sample first"
    )


def time_steps_of(batch: tuple[Any, ...]) -> tuple[int, int] | None:
    """Return the time steps and samples of a batch whose first tensor may be [time, batch, …].

    Its second dimension is then the first or second dimension of all others.

    >>> import torch
    >>> lengths = torch.zeros(4, dtype=torch.int64)
    >>> time_steps_of((torch.zeros(7, 4, 3), lengths)), time_steps_of((torch.zeros(4, 3), lengths))
    ((7, 4), None)
    """
    found = [leaf for leaf in leaves_of(batch) if isinstance(leaf, Tensor) and leaf.ndim > 0]
    if not found or any(one.is_nested for one in found) or found[0].ndim < 2:
        return None
    steps, rows = found[0].shape[:2]
    if steps == rows or any(rows not in one.shape[:2] for one in found):
        return None
    return steps, rows


def is_surely_time_first(batch: tuple[Any, ...]) -> bool:
    """Return whether the time steps that `time_steps_of` finds in a batch are unambiguous.

    All other tensors then have one row per sample. A single other one that has floats may be weights of
    features, unless its shape does not fit them.

    >>> import torch
    >>> x, labels = torch.zeros(7, 4, 3), torch.zeros(4)
    >>> [is_surely_time_first((x, one)) for one in (labels, labels.long(), torch.zeros(4, 2))]
    [False, True, True]
    """
    first, *others = [leaf for leaf in leaves_of(batch) if isinstance(leaf, Tensor) and leaf.ndim > 0]
    if not others or any(len(one) != first.shape[1] for one in others):
        return False
    if len(others) > 1 or not others[0].is_floating_point():
        return True
    features = first.shape[1:]
    is_weight = others[0].ndim <= len(features) and all(
        wide in (1, feature) for wide, feature in zip(others[0].shape, features)
    )
    return first.ndim > 2 and others[0].ndim > 1 and not is_weight


def varying_samples(before: tuple[int, int], now: tuple[int, int]) -> str:
    """Return a warning about batches that count as many samples as they have time steps.

    Both are the time steps and the samples of a batch.

    >>> varying_samples((7, 4), (9, 4))[:66]
    'a batch counts as 9 samples, the rows of its first tensor, and an '
    """
    (steps, rows), (earlier_steps, earlier_rows) = now, before
    counted = f"a batch counts as {steps} samples, the rows of its first tensor,"
    if steps == earlier_steps:
        told = (
            f"{counted} but the other tensors have {rows} rows, and those of an earlier batch {earlier_rows}."
            " If the rows of the first tensor are not samples, all batches have the same weight"
        )
    else:
        told = (
            f"{counted} and an earlier one as {earlier_steps}, but the other tensors have {rows} rows. If "
            "these are time steps, batches are weighted by their length"
        )
    return (
        f"{told}: put a tensor with one row for each sample first, or, in a loop with a TrainStep, pass the "
        f"number of samples: step.call((x, y), samples={rows})"
    )


def why_not_splittable(batch: tuple[Any, ...], samples: int) -> str | None:
    """Return why a batch cannot be split or padded by samples; None if every tensor has one row per sample.

    >>> import torch
    >>> why_not_splittable((torch.zeros(7, 4, 3), torch.zeros(4)), 4)
    'it has 4 samples, but it has tensors with 7 rows'
    """
    if any(map(_is_packed_sequence, _parts_of(batch))):
        return "its sequences are packed"
    lengths = leading_lengths(batch)
    if not lengths and samples > 1:
        return f"it has {samples} samples, but no tensor with rows"
    others = [length for length in lengths if length != samples]
    if not others:
        return None
    return f"it has {samples} samples, but it has tensors with {' and '.join(map(str, others))} rows"


def is_packed(batch: tuple[Any, ...]) -> bool:
    """Return whether a batch has several sequences in one row, with their boundaries in `cu_seqlens`.

    >>> is_packed(({"input_ids": [[5, 6, 7]], "cu_seqlens": [0, 2, 3]}, [0, 1]))
    True
    """
    return any(isinstance(part, Mapping) and "cu_seqlens" in part for part in batch)


def split_batch(batch: tuple[Any, ...], count: int) -> list[tuple[Any, ...]]:
    """Split a batch by samples into at most `count` parts; values without rows go into every part.

    >>> import torch
    >>> [part[0].tolist() for part in split_batch((torch.arange(5), "name"), 2)]
    [[0, 1, 2], [3, 4]]
    """
    total = num_samples(batch)
    size = max(1, -(-total // count))

    def part_from(start: int) -> tuple[Any, ...]:
        part: tuple[Any, ...] = map_tensors(
            lambda leaf: leaf[start : start + size] if leaf.ndim > 0 else leaf, batch
        )
        return part

    return [part_from(start) for start in range(0, total, size)] or [batch]


def pieces_of(batch: tuple[Any, ...]) -> list[tuple[Any, ...]] | None:
    """Split a batch into 2 to 4 pieces of at least two samples.

    Return None if that is not possible, or if something in the batch does not clearly belong to samples.

    >>> import torch
    >>> pieces_of((torch.arange(5), {"y": torch.arange(5)}))
    [(tensor([0, 1, 2]), {'y': tensor([0, 1, 2])}), (tensor([3, 4]), {'y': tensor([3, 4])})]
    >>> pieces_of((torch.arange(4), ["one", "two", "three", "four"])) is None
    True
    """
    total = num_samples(batch)
    if is_packed(batch) or why_not_splittable(batch, total):
        return None
    known = bool | int | float | Tensor | np.ndarray
    if not all(leaf is None or isinstance(leaf, known) for leaf in leaves_of(batch)):
        return None
    for count in (4, 3, 2):
        pieces = split_batch(batch, count)
        # `squeeze()` removes the dimension of a single sample, too.
        if len(pieces) > 1 and all(num_samples(one) > 1 for one in pieces):
            return pieces
    return None
