"""The ragged last batch of an epoch: recognized, and padded to the usual size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flodl.core import StepError

from ..batch.samples import why_not_splittable
from ..batch.signature import Signature
from ..batch.tree import map_tensors, tensors_of


@dataclass
class UsualSize:
    """The usual number of samples per batch: one smaller batch is ragged, a second in a row is the new usual.

    >>> usual = UsualSize()
    >>> [usual.is_ragged(samples) for samples in (6, 7, 6, 6, 3, 6, 3)]
    [False, False, True, False, True, False, True]
    """

    samples: int = 0
    after_tail: bool = False
    # The signature of the last batch, if it had the usual number of samples.
    signature: Signature | None = None
    # How many ragged batches were dropped.
    num_dropped: int = 0

    def is_ragged(self, samples: int, *, may_grow: bool = True) -> bool:
        """Return whether a batch is a ragged last one; an empty batch is not."""
        if samples == 0:
            return False
        if samples >= self.samples:
            self.after_tail = False
            if may_grow:
                self.samples = samples
            return False
        if self.after_tail:
            self.samples, self.after_tail = samples, False
            return False
        self.after_tail = True
        return True


def padded(batch: tuple[Any, ...], samples: int, size: int) -> tuple[tuple[Any, ...], Tensor]:
    """Repeat the first row up to `size` rows; return the batch and the mask of its real rows.

    >>> padded((torch.tensor([5, 6, 7]),), 3, 4)
    ((tensor([5, 6, 7, 5]),), tensor([ True,  True,  True, False]))
    """
    if why_not := why_not_splittable(batch, samples):
        raise StepError(
            f"tail='pad' cannot pad this batch: {why_not}. Use tail='eager', or pass tensors with one "
            "row per sample; what does not belong to a sample can be a buffer of the model."
        )
    # An empty batch has no row to repeat.
    missing = max(size - samples, 0) if samples else 0

    def fill(leaf: Any) -> Any:
        if missing == 0 or leaf.ndim == 0:
            return leaf
        if isinstance(leaf, np.ndarray):
            return np.concatenate([leaf, np.repeat(leaf[:1], missing, axis=0)])
        return torch.cat([leaf, leaf[:1].expand(missing, *leaf.shape[1:])])

    filled: tuple[Any, ...] = map_tensors(fill, batch)
    device = next((leaf.device for leaf in tensors_of(batch)), None)
    return filled, torch.arange(samples + missing, device=device) < samples
