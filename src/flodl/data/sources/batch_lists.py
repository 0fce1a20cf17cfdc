"""Lists whose items look like whole batches, although a list contains samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

_NUM_CHECKED = 8
# Up to here, the first dimension may be the channels of an image.
_MAX_CHANNELS = 4


def warning_about_batches(source: Any, batch_size: int) -> str:
    """Return a warning if every item of a list has as many rows as a batch should have, else "".

    Sequences of ids, images and graphs with that many steps, rows or nodes are samples.

    >>> import torch
    >>> x, y = torch.zeros(64, 8), torch.zeros(64, 1)
    >>> warning_about_batches([(x, y), (x, y)], 64)
    'each item of the list has 64 rows, like a whole batch with batch_size=64. A list contains samples, ...
    >>> ids = torch.zeros(64, dtype=torch.int64)
    >>> warning_about_batches([(ids, ids)], 64), warning_about_batches([(x, y)], 32)
    ('', '')
    """
    if not isinstance(source, list) or not source or batch_size <= _MAX_CHANNELS:
        return ""
    items = [_shapes_of(item) for item in source[:_NUM_CHECKED]]
    rows = [{shape[0] for shape in shapes} for shapes in items]
    if len(source) > 1 and len(items) == len(source) and len(rows[-1]) == 1 and min(rows[-1]) < batch_size:
        rows.pop()  # the last batch may be smaller
    if any(found != {batch_size} for found in rows):
        return ""
    first = items[0]
    if len(first) < 2 or len(first[0]) < 2 or any(_is_square(shape) for shape in first):
        return ""
    stacked = [min(len(source), batch_size), *first[0]]
    return (
        f"each item of the list has {batch_size} rows, like a whole batch with batch_size={batch_size}. A "
        f"list contains samples, so its items are stacked to {stacked}. For a list of batches, pass "
        f"batch_size=None, or Loader(batches, batch_size=None) as eval_data. For samples of {batch_size} "
        "steps, pass stacked tensors, (torch.stack(xs), torch.stack(ys)), which also avoids this warning."
    )


def _shapes_of(item: Any) -> list[tuple[int, ...]]:
    """Return the shapes of the parts of an item; none unless all of them are tensors or arrays with rows."""
    if not isinstance(item, tuple | list | Mapping):
        return []
    parts = [*(item.values() if isinstance(item, Mapping) else item)]
    if not all(isinstance(part, Tensor | np.ndarray) and part.ndim for part in parts):
        return []
    return [tuple(part.shape) for part in parts]


def _is_square(shape: tuple[int, ...]) -> bool:
    """Return whether these may be the pixels of an image or the edges of a graph."""
    return len(shape) > 1 and shape[0] == shape[1]
