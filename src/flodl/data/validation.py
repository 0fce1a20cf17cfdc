"""Validation of a loader's arguments, and the default device."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader

from flodl.core.device import parse_device
from flodl.core.errors import DataError

from .sources import Source, Stream
from .sources.source import GatherSource


def check_counts(**counts: object) -> None:
    """Raise unless each argument is an integer that is large enough; batch_size may be None.

    >>> check_counts(batch_size=None, num_workers=0)
    """
    least = {"batch_size": 1, "prefetch": 1}
    for name, value in counts.items():
        if value is None and name == "batch_size":
            continue
        if type(value) is not int or value < least.get(name, 0):
            raise DataError(f"{name}={value!r}. Pass an integer >= {least.get(name, 0)}.")


def resolve_device(device: torch.device | str | None, source: Source) -> torch.device:
    """Return the requested device, by default the device of the data."""
    if device is None:
        return source.device if isinstance(source, GatherSource) else torch.device("cpu")
    return parse_device(
        device, error=DataError, advice="Use 'cpu', 'cuda' or 'cuda:0'.", advice_without_cuda="Use 'cpu'."
    )


def check_stream_arguments(stream: Stream, *, sampler: Any, num_workers: int) -> None:
    """Raise for a sampler, and for workers if several cannot read the iterable."""
    if sampler is not None:
        raise DataError("an iterable has its own order, so sampler= cannot be used with it.")
    if not num_workers:
        return
    if isinstance(stream.source, DataLoader):
        why = "a DataLoader, which has its own workers"
    elif stream.is_iterator:
        why = "an iterator, which only one reader can use"
    else:
        return
    raise DataError(f"num_workers={num_workers} with {why}. Pass the dataset itself, or num_workers=0.")
