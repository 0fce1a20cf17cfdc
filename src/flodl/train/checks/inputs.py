"""What the inputs of a batch look like, in a few numbers that are cheap to keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# A batch with fewer different values consists of codes, such as 0 and 1.
MANY_VALUES = 16
_NUM_COUNTED = 65_536


@dataclass(frozen=True)
class Inputs:
    """The statistics of the inputs of a batch: of each channel of images, and of each column of a table."""

    # The part of the batch that was described; None for a batch that is a tensor.
    of: int | str | None
    shape: tuple[int, ...]
    is_float: bool
    # Mean and standard deviation, in double precision on the host; of bytes on a scale of 0 to 1.
    statistics: Tensor
    # The lowest and the highest value, likewise.
    extremes: Tensor
    low: float
    high: float
    # The fraction of values below 0.
    negative: float
    has_many_values: bool

    @property
    def is_images(self) -> bool:
        return len(self.shape) == 4

    @property
    def num_values(self) -> int:
        return torch.Size(self.shape).numel()


def inputs_of(batch: Any, of: int | str | None) -> Inputs | None:
    """Describe the part of a batch that `of` names, by default the first, if it is numbers with features.

    >>> found = inputs_of((torch.tensor([[0.0, 1.0], [2.0, 3.0]]), torch.ones(2)), None)
    >>> found.statistics.tolist(), found.low, found.high
    ([[1.0, 2.0], [1.0, 1.0]], 0.0, 3.0)
    """
    tensor = _part(batch, of)
    if not isinstance(tensor, Tensor) or tensor.dim() < 2 or not tensor.numel():
        return None
    is_bytes = tensor.dtype == torch.uint8
    if not is_bytes and not tensor.is_floating_point():
        return None
    values = tensor.detach().float() / (255 if is_bytes else 1)
    others = [dim for dim in range(values.dim()) if dim != 1] if values.dim() in (2, 4) else None
    variance, mean = torch.var_mean(values, others, correction=0)
    statistics = torch.stack([mean.double(), variance.double().sqrt()]).cpu()
    lowest, highest = values.amin(others or ()), values.amax(others or ())
    return Inputs(
        of=_name_of(batch, of),
        shape=tuple(tensor.shape),
        is_float=not is_bytes,
        statistics=statistics,
        extremes=torch.stack([lowest, highest]).double().cpu(),
        low=float(lowest.min()),
        high=float(highest.max()),
        negative=float((values < 0).float().mean()),
        has_many_values=len(set(values.flatten()[:_NUM_COUNTED].tolist())) > MANY_VALUES,
    )


def _part(batch: Any, of: int | str | None) -> Any:
    if isinstance(batch, Mapping):
        return batch.get(_name_of(batch, of))
    if isinstance(batch, tuple | list):
        index = of or 0
        return batch[index] if isinstance(index, int) and index < len(batch) else None
    return batch


def _name_of(batch: Any, of: int | str | None) -> Any:
    """Return the key or the index of a part.

    >>> _name_of({"image": 1, "label": 2}, None), _name_of([1, 2], None), _name_of(1, 0)
    ('image', 0, None)
    """
    if isinstance(batch, Mapping):
        return next(iter(batch), None) if of is None else of
    return (of or 0) if isinstance(batch, tuple | list) else None
