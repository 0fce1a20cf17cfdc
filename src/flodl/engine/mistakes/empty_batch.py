"""Batches without samples: which of their tensors are empty, and what to do about it."""

from __future__ import annotations

from typing import Any

from ..batch.samples import num_samples
from ..settings import StepFunction
from .batch_names import named_tensors
from .batch_text import batch_text

EMPTY_BATCH_ADVICE = (
    "A step needs at least one sample: leave out empty batches, and check the sampler, the collate function "
    "or the filter that returns them"
)


def empty_batch(step_fn: StepFunction, batch: tuple[Any, ...]) -> str:
    """Return which tensors of a batch without samples are empty; "" for any other batch.

    >>> import torch
    >>> empty_batch(lambda model, x, y: x, (torch.zeros(0, 3), torch.zeros(0)))
    'the batch has no samples: x is float32 [0, 3] and y is float32 [0]'
    >>> empty_batch(lambda model, x, y: x, (torch.zeros(1, 3), torch.zeros(1)))
    ''
    """
    if num_samples(batch):
        return ""
    parts = [
        f"{name} is {batch_text((tensor,))[1:-1]}"
        for name, tensor in named_tensors(step_fn, batch)
        if tensor.ndim and not len(tensor)
    ]
    if not parts:
        return f"the batch has no samples: it is {batch_text(batch)}"
    return f"the batch has no samples: {', '.join(parts[:-1])}{' and ' if parts[1:] else ''}{parts[-1]}"
