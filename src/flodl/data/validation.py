"""Validation of a loader's arguments, and the default device."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler

from flodl.core.device import parse_device
from flodl.core.errors import DataError
from flodl.core.formats import a_type

from .sampling.indices import check_weights
from .sources import Batches, Samples, Source, Stream
from .sources.source import GatherSource


def check_counts(**counts: object) -> None:
    """Raise unless each argument is an integer that is large enough; batch_size and seed may be None.

    >>> check_counts(batch_size=None, num_workers=0)
    """
    least = {"batch_size": 1, "prefetch": 1}
    for name, value in counts.items():
        if value is None and name in ("batch_size", "seed"):
            continue
        if name == "batch_size" and isinstance(value, list | tuple | np.ndarray | Tensor):
            raise DataError(
                f"batch_size is {a_type(value)}. Pass inputs and targets as one dataset: "
                "Loader((x, y), batch_size=64)."
            )
        if type(value) is not int or value < least.get(name, 0):
            raise DataError(f"{name}={value!r}. Pass an integer >= {least.get(name, 0)}.")


def resolve_device(device: torch.device | str | None, source: Source) -> torch.device:
    """Return the requested device, by default the device of the data."""
    if device is None:
        return source.device if isinstance(source, GatherSource) else torch.device("cpu")
    return parse_device(
        device, error=DataError, advice="Use 'cpu', 'cuda' or 'cuda:0'.", advice_without_cuda="Use 'cpu'."
    )


def check_flags(**flags: object) -> None:
    """Raise unless each argument is a bool; shuffle may be None."""
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_) and not (value is None and name == "shuffle"):
            raise DataError(f"{name}={value!r}. Pass True or False.")


@dataclass(frozen=True)
class OrderArguments:
    """The arguments of a loader that fit only some sources."""

    batch_size: int | None
    shuffle: bool | None
    drop_last: bool
    sampler: Any
    collate: Any
    num_workers: int
    shuffle_buffer: int

    def check(self, source: Source) -> None:
        """Raise for an argument that the loader would ignore."""
        if isinstance(source, Stream):
            if isinstance(source.source, DataLoader):
                self._check_dataloader(source.source)
            self._check_stream(source)
            if self.batch_size is None:
                self._check_whole_batches()
        else:
            self._check_sized(source)

    def _check_dataloader(self, source: DataLoader[Any]) -> None:
        if self.batch_size is not None and source.batch_sampler is not None:
            raise DataError(
                f"batch_size={self.batch_size} with a DataLoader, which already makes batches. Use "
                f"Loader(dataloader, batch_size=None) to keep them, or pass its dataset: "
                f"Loader(dataloader.dataset, batch_size={self.batch_size})."
            )
        if self.num_workers:
            raise DataError(
                f"num_workers={self.num_workers} with a DataLoader, which has its own workers. "
                "Pass the dataset itself, or num_workers=0."
            )
        if isinstance(source.dataset, Sized):
            check_weights(source.sampler, len(source.dataset))
        shuffles = isinstance(source.sampler, RandomSampler)
        if self.shuffle not in (None, shuffles) and not self.shuffle_buffer:
            raise DataError(
                f"shuffle={self.shuffle} with a DataLoader, which has its own order. Pass shuffle= to the "
                "DataLoader, or pass its dataset to the Loader."
            )

    def _check_stream(self, stream: Stream) -> None:
        if self.sampler is not None:
            raise DataError("an iterable has its own order, so sampler= cannot be used with it.")
        if self.num_workers and stream.is_iterator:
            raise DataError(
                f"num_workers={self.num_workers} with an iterator, which only one reader can use. "
                "Pass the dataset itself, or num_workers=0."
            )
        if self.shuffle_buffer and self.shuffle not in (None, True):
            raise DataError(
                f"shuffle=False with shuffle_buffer={self.shuffle_buffer}, which shuffles. Omit one of them."
            )
        if self.shuffle and not self.shuffle_buffer and not isinstance(stream.source, DataLoader):
            what = "a list of batches" if isinstance(stream.source, list) else "an iterable"
            raise DataError(
                f"shuffle=True with {what}, which is read in its own order. Pass shuffle_buffer=1000 to "
                "shuffle it through a buffer of 1000 items, or omit shuffle."
            )

    def _check_whole_batches(self) -> None:
        if self.drop_last:
            raise DataError(
                "drop_last=True with batch_size=None: the source makes the batches. Have it omit an "
                "incomplete one, for example with DataLoader(…, drop_last=True)."
            )
        if self.collate is not None:
            raise DataError(
                "collate= with batch_size=None: the source makes the batches, so nothing is collated. Use "
                "transform= for a function of the whole batch, or pass a batch_size."
            )

    def _check_sized(self, source: GatherSource | Samples | Batches) -> None:
        if self.shuffle_buffer:
            raise DataError(
                "shuffle_buffer= is only for iterables; a source with a length is shuffled as a whole."
            )
        if self.shuffle and self.sampler is not None:
            raise DataError("shuffle=True with sampler=, which determines the order. Omit one of them.")
        if self.batch_size is None:
            raise DataError(
                "batch_size is None, which is for a list of batches and for iterables that yield whole "
                "batches. Pass the number of samples per batch, such as batch_size=32. For a dataset that "
                "creates batches by index, pass torch's DataLoader(source, batch_size=None)."
            )
        if source.num_samples == 0:
            raise DataError("the source has no samples. Pass at least one.")
