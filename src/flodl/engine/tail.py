"""The ragged last batch: padded to the usual size with a mask, or left out."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flodl.core import StepError

from .batch import num_samples
from .body import StepFunction


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
    real = num_samples(batch)
    missing = size - real

    def fill(leaf: Tensor) -> Tensor:
        if missing <= 0 or leaf.dim() == 0 or leaf.shape[0] != real:
            return leaf
        return torch.cat([leaf, leaf[:1].expand(missing, *leaf.shape[1:])])

    filled: tuple[Any, ...] = pytree.tree_map_only(Tensor, fill, batch)
    device = next((leaf.device for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)), None)
    return (*filled, torch.arange(max(size, real), device=device) < real)
