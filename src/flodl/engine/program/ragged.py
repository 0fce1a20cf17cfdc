"""The ragged last batch: padded to the usual size with a mask, or left out."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flodl.core import StepError

from ..batch.samples import num_samples, why_not_splittable
from ..batch.tree import map_tensors, tensors_of
from ..settings import StepFunction


@dataclass
class UsualSize:
    """How many samples a batch usually has: one smaller batch is a tail, a second in a row is the new usual.

    >>> usual = UsualSize()
    >>> [usual.is_tail(samples) for samples in (6, 7, 6, 6, 3, 6, 3)]
    [False, False, True, False, True, False, True]
    """

    samples: int = 0
    after_tail: bool = False

    def is_tail(self, samples: int, *, may_grow: bool = True) -> bool:
        """Take in a batch, and say whether it is a ragged last one; an empty batch says nothing."""
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


def with_mask(step_fn: StepFunction) -> StepFunction:
    """Let a step function with a `mask` parameter take the mask as the last part of the batch."""
    try:
        parameters = inspect.signature(step_fn).parameters.values()
    except (TypeError, ValueError):
        parameters = ()  # type: ignore[assignment]
    if not any(p.name == "mask" or p.kind is p.VAR_KEYWORD for p in parameters):
        raise StepError(
            "tail='pad' fills a ragged batch with rows that must not count, and the step function has no "
            "'mask' parameter to leave them out. Write step_fn(model, x, y, *, mask) and average over "
            "mask, or use tail='eager'."
        )

    def masked(model: Any, *batch: Any) -> Any:
        *inputs, mask = batch
        return step_fn(model, *inputs, mask=mask)

    return masked


def padded(batch: tuple[Any, ...], size: int) -> tuple[Any, ...]:
    """Repeat the first row up to `size` rows and append the mask of the rows that are real.

    >>> x, mask = padded((torch.tensor([5, 6, 7]),), 4)
    >>> x, mask
    (tensor([5, 6, 7, 5]), tensor([ True,  True,  True, False]))
    """
    if why_not := why_not_splittable(batch):
        raise StepError(
            f"tail='pad' cannot fill this batch up: {why_not}. Use tail='eager', or give tensors with one "
            "row for each sample; what belongs to no sample can be a buffer of the model."
        )
    real = num_samples(batch)
    # An empty batch has no row to repeat.
    missing = max(size - real, 0) if real else 0

    def fill(leaf: Any) -> Any:
        if missing == 0 or leaf.ndim == 0:
            return leaf
        if isinstance(leaf, np.ndarray):
            return np.concatenate([leaf, np.repeat(leaf[:1], missing, axis=0)])
        return torch.cat([leaf, leaf[:1].expand(missing, *leaf.shape[1:])])

    filled: tuple[Any, ...] = map_tensors(fill, batch)
    device = next((leaf.device for leaf in tensors_of(batch)), None)
    return (*filled, torch.arange(real + missing, device=device) < real)
