"""What a loader is asked for: completed where it was left open, refused where it makes no sense."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader

from flodl.core.device import parse_device
from flodl.core.errors import DataError

from .sources import Source, Stream
from .sources.source import Gathered


def check_counts(**counts: object) -> None:
    """Refuse what is not a whole number, or too small; a batch size may be left open.

    >>> check_counts(batch_size=None, num_workers=0)
    """
    least = {"batch_size": 1, "prefetch": 1}
    for name, value in counts.items():
        if value is None and name == "batch_size":
            continue
        if type(value) is not int or value < least.get(name, 0):
            raise DataError(f"{name}={value!r}. Give a whole number from {least.get(name, 0)} up.")


def chosen_device(device: torch.device | str | None, source: Source) -> torch.device:
    """Give the device asked for, else the one where the data lie."""
    if device is None:
        return source.device if isinstance(source, Gathered) else torch.device("cpu")
    return parse_device(
        device, error=DataError, advice="Use 'cpu', 'cuda' or 'cuda:0'.", advice_without_cuda="Use 'cpu'."
    )


def refuse_for_stream(stream: Stream, *, sampler: Any, num_workers: int) -> None:
    """Refuse an order for an iterable, and workers for one that cannot be read by several."""
    if sampler is not None:
        raise DataError("an iterable has its own order: sampler= cannot be used with it.")
    if not num_workers:
        return
    if isinstance(stream.source, DataLoader):
        why = "a DataLoader, which has workers of its own"
    elif stream.is_iterator:
        why = "an iterator, which gives everything once, to one reader"
    else:
        return
    raise DataError(f"num_workers={num_workers} with {why}. Give the dataset itself, or num_workers=0.")
