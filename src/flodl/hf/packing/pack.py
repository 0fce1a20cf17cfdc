"""Sentences to the tensors of a slot, and back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flodl.core import HFError

from .slot import Slot

Values = Sequence[int] | np.ndarray[Any, Any] | Tensor


def pack(
    sentences: Sequence[Values],
    slot: Slot,
    *,
    pad_id: int = 0,
    first_position: int = 0,
    token_types: Sequence[Values] | None = None,
) -> dict[str, Any]:
    """Return the inputs of a model for sentences of token ids, one after the other in one row.

    `first_position` is 0, or the padding id + 1 for RoBERTa and XLM-RoBERTa. `cu_seqlens` says where each
    sentence starts; then come empty ones, up to the number of sequences in the slot, and then the padding,
    in pieces of at most `longest` tokens.

    >>> batch = pack([[5, 6, 7], [8, 9]], Slot(tokens=64, sequences=3, longest=32), pad_id=1)
    >>> batch["input_ids"][0, :7], batch["position_ids"][0, :7]
    (tensor([5, 6, 7, 8, 9, 1, 1]), tensor([0, 1, 2, 0, 1, 0, 1]))
    >>> batch["cu_seqlens"], batch["longest"]
    (tensor([ 0,  3,  5,  5, 37, 64], dtype=torch.int32), 32)
    """
    lengths = _lengths(sentences)
    slot.check(lengths)
    packed = {
        "input_ids": _row(sentences, lengths, slot, pad_id),
        **_structure(lengths, slot, first_position),
    }
    if token_types is not None:
        _check_same(lengths, _lengths(token_types), "token types")
        packed["token_type_ids"] = _row(token_types, lengths, slot, 0)
    return packed


def pack_flat(
    ids: np.ndarray[Any, Any],
    lengths: Sequence[int],
    slot: Slot,
    *,
    pad_id: int = 0,
    first_position: int = 0,
    token_types: np.ndarray[Any, Any] | None = None,
) -> dict[str, Any]:
    """Do the same as `pack` for sentences that are already joined, without a loop over them.

    >>> batch = pack_flat(np.array([5, 6, 7, 8, 9]), [3, 2], Slot(tokens=64, sequences=3, longest=32))
    >>> batch["input_ids"][0, :7], batch["cu_seqlens"]
    (tensor([5, 6, 7, 8, 9, 0, 0]), tensor([ 0,  3,  5,  5, 37, 64], dtype=torch.int32))
    """
    slot.check(lengths)
    packed = {"input_ids": fill_row(ids, slot, pad_id), **_structure(lengths, slot, first_position)}
    if token_types is not None:
        packed["token_type_ids"] = fill_row(token_types, slot, 0)
    return packed


def fill_row(values: np.ndarray[Any, Any], slot: Slot, fill: int) -> Tensor:
    """Return joined values, one per token, as a row [1, tokens] of a slot."""
    row = np.full(slot.tokens, fill, dtype=np.int64)
    row[: len(values)] = values
    return torch.from_numpy(row)[None]


def _structure(lengths: Sequence[int], slot: Slot, first_position: int) -> dict[str, Any]:
    """Return what says where the sentences are."""
    boundaries = _boundaries(lengths, slot)
    starts = np.repeat(boundaries[:-1], np.diff(boundaries))
    return {
        "position_ids": torch.from_numpy(np.arange(slot.tokens) - starts + first_position)[None],
        "cu_seqlens": torch.from_numpy(boundaries.astype(np.int32)),
        "longest": slot.longest,
    }


def pack_values(
    values: Sequence[Values], slot: Slot, *, fill: int, sentences: Sequence[Values] | None = None
) -> Tensor:
    """Return one integer per token as a tensor [1, tokens], for example labels with −100 for padding.

    With `sentences`, the lengths must be theirs.

    >>> pack_values([[1, 0, 0], [2, 0]], Slot(tokens=64, sequences=2, longest=32), fill=-100)[0, :6]
    tensor([   1,    0,    0,    2,    0, -100])
    """
    lengths = _lengths(values)
    slot.check(lengths)
    if sentences is not None:
        _check_same(_lengths(sentences), lengths, "values")
    return _row(values, lengths, slot, fill)


def unpack(packed: Tensor, cu_seqlens: Tensor, count: int) -> list[Tensor]:
    """Return the part of each of the `count` sentences of a packed tensor [1, tokens, …].

    The host reads `cu_seqlens`; inside a step, use `to_rows`.

    >>> unpack(torch.arange(64)[None], torch.tensor([0, 3, 5, 37, 64]), 2)
    [tensor([0, 1, 2]), tensor([3, 4])]
    """
    ends = cu_seqlens[: count + 1].tolist()
    if packed.dim() < 2 or packed.shape[0] != 1 or len(ends) != count + 1 or packed.shape[1] < ends[-1]:
        raise HFError(
            f"a tensor of shape {tuple(packed.shape)} does not contain {count} sentences with "
            f"{len(cu_seqlens)} boundaries up to {int(cu_seqlens[-1])}; expected a packed "
            "tensor [1, tokens, …]."
        )
    return [packed[0, start:end] for start, end in pairwise(ends)]


def _lengths(sentences: Sequence[Values]) -> list[int]:
    return [len(sentence) for sentence in sentences]


def _boundaries(lengths: Sequence[int], slot: Slot) -> np.ndarray[Any, Any]:
    """Return where the sentences, the empty sequences and the pieces of padding start, and the end."""
    used = sum(lengths)
    boundaries = np.full(slot.num_boundaries, used, dtype=np.int64)
    boundaries[0] = 0
    boundaries[1 : len(lengths) + 1] = np.cumsum(lengths)
    pieces = used + slot.longest * np.arange(1, slot.num_pieces + 1)
    boundaries[slot.sequences + 1 :] = np.minimum(pieces, slot.tokens)
    return boundaries


def _row(sentences: Sequence[Values], lengths: Sequence[int], slot: Slot, fill: int) -> Tensor:
    row = np.full(slot.tokens, fill, dtype=np.int64)
    used = sum(lengths)
    if all(isinstance(sentence, list | tuple) for sentence in sentences):
        row[:used] = np.fromiter(chain.from_iterable(sentences), dtype=np.int64, count=used)
    else:
        np.concatenate([np.asarray(sentence) for sentence in sentences], out=row[:used])
    return torch.from_numpy(row)[None]


def _check_same(expected: Sequence[int], found: Sequence[int], what: str) -> None:
    if list(expected) == list(found):
        return
    if len(expected) != len(found):
        raise HFError(f"there are {what} for {len(found)} sentences, but {len(expected)} sentences.")
    index = next(index for index, pair in enumerate(zip(expected, found)) if pair[0] != pair[1])
    raise HFError(
        f"sentence {index} has {expected[index]} tokens, but {found[index]} {what}; expected one per token."
    )
