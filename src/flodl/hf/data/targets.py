"""The labels of a data set: of each text, of each token, or the span of an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from ..losses import IGNORED
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


@dataclass(frozen=True)
class NoTargets:
    """Texts without labels, or whose labels are made with the batch."""

    def padded(self, indices: Array, place: Place) -> Any:
        return None


@dataclass(frozen=True)
class TextTargets:
    """A class id, a number or a row of numbers per text."""

    values: Array

    def padded(self, indices: Array, place: Place) -> Any:
        return torch.from_numpy(self.values[indices])


@dataclass(frozen=True)
class TokenTargets:
    """A label per token, next to the ids."""

    values: Array

    def padded(self, indices: Array, place: Place) -> Any:
        return torch.from_numpy(place.rows(self.values, IGNORED))


@dataclass(frozen=True)
class SpanTargets:
    """The first and last token of an answer; `index` says which windows are in the batch, for metrics."""

    spans: Array

    def padded(self, indices: Array, place: Place) -> Any:
        spans = self.spans[indices] + place.shift[:, None]
        return {
            "start_positions": torch.from_numpy(spans[:, 0].copy()),
            "end_positions": torch.from_numpy(spans[:, 1].copy()),
            "index": torch.from_numpy(np.array(indices, np.int64)),
        }
