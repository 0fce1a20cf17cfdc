"""Batches of tokenized texts, padded to equal lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..losses import IGNORED
from .layout import Layout
from .masking import Masking
from .targets import Targets
from .tokens import Array, Tokens


@dataclass(frozen=True)
class Padded:
    """Pads the texts of a batch to the longest one, or to the next of a few fixed widths."""

    tokens: Tokens
    targets: Targets
    layout: Layout
    masking: Masking | None = None
    widths: Sequence[int] = ()

    def make(self, indices: Array, keys: Tensor) -> Any:
        """Return the inputs of a model, and labels if there are any."""
        starts = self.tokens.offsets[indices]
        lengths = self.tokens.offsets[indices + 1] - starts
        width = int(lengths.max(initial=1))
        if self.widths:
            width = self.widths[int(np.searchsorted(self.widths, width))]
        place = _Place(starts, lengths, width, left=self.layout.pads_left)
        ids = place.rows(self.tokens.ids, self.layout.pad_id)
        labels = None
        if self.masking is not None:
            # The tokens of a text are numbered from its start, wherever the padding is.
            on_left = _Place(starts, lengths, width, left=False)
            masked, targets = self.masking.apply(
                on_left.rows(self.tokens.ids, self.layout.pad_id), lengths, keys
            )
            ids, labels = place.moved(masked, self.layout.pad_id), _tensor(place.moved(targets, IGNORED))
        inputs = {"input_ids": _tensor(ids), "attention_mask": _tensor(place.is_token.astype(np.int64))}
        if self.layout.has_token_types:
            types = 0 if self.tokens.types is None else place.rows(self.tokens.types, 0)
            inputs["token_type_ids"] = _tensor(np.broadcast_to(types, ids.shape).astype(np.int64))
        if self.masking is None:
            labels = self.targets.padded(indices, place)
        return (inputs,) if labels is None else (inputs, labels)


class _Place:
    """Where the tokens of texts are in padded rows, on the left or on the right."""

    def __init__(self, starts: Array, lengths: Array, width: int, *, left: bool) -> None:
        self.shift = width - lengths if left else np.zeros_like(lengths)
        columns = np.arange(width) - self.shift[:, None]
        self.is_token = (columns >= 0) & (columns < lengths[:, None])
        self._source = np.where(self.is_token, starts[:, None] + columns, 0)
        self._column = np.where(self.is_token, columns, 0)

    def rows(self, values: Array, fill: int) -> Array:
        """Return flat values, one per token, as padded rows."""
        return np.where(self.is_token, values[self._source], fill).astype(np.int64)

    def moved(self, rows: Array, fill: int) -> Array:
        """Return rows whose tokens are on the left at the place they belong to."""
        return np.where(self.is_token, np.take_along_axis(rows, self._column, axis=1), fill)


def _tensor(values: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))
