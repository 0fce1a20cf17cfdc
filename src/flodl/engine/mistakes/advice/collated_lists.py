"""Lists of numbers in samples, such as token ids, which are collated into a list of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor


def collated_list(batch: Any, value: Any = None) -> str:
    """Return the advice for a list in a batch that should be one tensor, or "" if there is none.

    With `value`, it is that list. Each tensor in it has the numbers of all samples at one position.

    >>> import torch
    >>> collated_list(({"ids": [torch.tensor([1, 5]), torch.tensor([2, 6])]},))[:66]
    "The part 'ids' of the batch is a list of 2 tensors, not one tensor"
    >>> collated_list(([torch.zeros(2, 3), torch.zeros(2, 3)],))
    ''
    """
    for name, found in _lists_in(batch):
        if (value is None or value is found) and _is_collated(found):
            part = f"The part {name!r}" if isinstance(name, str) else "A part"
            sample = f"sample[{name!r}]" if isinstance(name, str) else "sample"
            return (
                f"{part} of the batch is a list of {len(found)} tensors, not one tensor. If the samples "
                "contain lists of numbers, such as token ids, torch's collate function makes a tensor of "
                f"each position. Make them tensors in the dataset, torch.tensor({sample}), or pass a collate "
                "function that returns tensors: Loader(data, batch_size, collate=…)."
            )
    return ""


def _is_collated(found: list[Any] | tuple[Any, ...]) -> bool:
    """Return whether these are tensors of one number per sample."""
    shapes = {item.shape if isinstance(item, Tensor) else None for item in found}
    return len(shapes) == 1 and all(shape is not None and len(shape) == 1 for shape in shapes)


def _lists_in(batch: Any, name: Any = None) -> Iterator[tuple[Any, list[Any] | tuple[Any, ...]]]:
    """Yield the lists of a batch, with their keys in a dict; the batch itself is not one of them."""
    items = batch.items() if isinstance(batch, Mapping) else ((name, part) for part in batch)
    for key, part in items:
        if isinstance(part, list | tuple):
            yield key, part
        if isinstance(part, Mapping | list | tuple):
            yield from _lists_in(part, key)
