"""The labels of a dataset: of each text, of each token, or the span of an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from ..losses import IGNORED
from ..packing import Slot, fill_row
from .tokens import Array


class Place(Protocol):
    """Where tokens are in padded rows."""

    shift: Array

    def rows(self, values: Array, fill: int) -> Array:
        """Return flat values, one per token, as padded rows."""
        ...


class Targets(Protocol):
    """Labels that follow the texts into a batch."""

    def padded(self, indices: Array, place: Place) -> Any:
        """Return the labels of these texts for padded rows; None without labels."""
        ...

    def packed(self, indices: Array, where: Array, slot: Slot) -> Any:
        """Return the labels for a slot, given where their tokens are in the flat arrays."""
        ...


@dataclass(frozen=True)
class NoTargets:
    """Texts without labels, or whose labels are made with the batch."""

    def padded(self, indices: Array, place: Place) -> Any:
        return None

    def packed(self, indices: Array, where: Array, slot: Slot) -> Any:
        return None


@dataclass(frozen=True)
class TextTargets:
    """A class id, a number or a row of numbers per text."""

    values: Array

    def padded(self, indices: Array, place: Place) -> Any:
        return torch.from_numpy(self.values[indices])

    def packed(self, indices: Array, where: Array, slot: Slot) -> Any:
        return torch.from_numpy(_filled(self.values[indices], slot))


@dataclass(frozen=True)
class TokenTargets:
    """A label per token, next to the ids."""

    values: Array

    def padded(self, indices: Array, place: Place) -> Any:
        return torch.from_numpy(place.rows(self.values, IGNORED))

    def packed(self, indices: Array, where: Array, slot: Slot) -> Any:
        return fill_row(self.values[where], slot, IGNORED)


@dataclass(frozen=True)
class SpanTargets:
    """The first and last token of an answer; `index` says which windows are in the batch, for metrics."""

    spans: Array

    def padded(self, indices: Array, place: Place) -> Any:
        return _span_labels(self.spans[indices] + place.shift[:, None], indices)

    def packed(self, indices: Array, where: Array, slot: Slot) -> Any:
        # Positions count from the start of each sentence.
        index = _filled(np.asarray(indices, np.int64), slot)
        return _span_labels(_filled(self.spans[indices], slot), np.where(index < 0, -1, index))


def _span_labels(spans: Array, index: Array) -> dict[str, torch.Tensor]:
    return {
        "start_positions": torch.from_numpy(spans[:, 0].copy()),
        "end_positions": torch.from_numpy(spans[:, 1].copy()),
        "index": torch.from_numpy(np.array(index, np.int64)),
    }


def _filled(values: Array, slot: Slot) -> Array:
    """Return one row for each sequence of a slot, with −100 where there is no sentence."""
    rows = np.full((slot.sequences, *values.shape[1:]), IGNORED, values.dtype)
    rows[: len(values)] = values
    return rows
