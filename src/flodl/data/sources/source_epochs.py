"""Passes the number of the epoch to an iterable source, and to the parts of a torch DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader


class SourceEpochs:
    """Calls `set_epoch` of a source, as a loop over epochs does with torch.

    Samplers and iterable datasets inside a DataLoader get it, too, unless the program has set an epoch there
    itself since the last call.

    >>> from torch.utils.data import DistributedSampler
    >>> sampler = DistributedSampler(range(8), num_replicas=1, rank=0)
    >>> epochs = SourceEpochs(DataLoader(range(8), sampler=sampler))
    >>> epochs.set(3)
    >>> sampler.epoch
    3
    >>> sampler.set_epoch(100)
    >>> epochs.set(4)
    >>> sampler.epoch
    100
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        # Each part of a DataLoader, with its epoch after the last call.
        self._parts = [(part, getattr(part, "epoch", None)) for part in _parts(source)]

    def set(self, epoch: int) -> None:
        """Set the epoch of the source and of its parts."""
        if hasattr(self._source, "set_epoch"):
            self._source.set_epoch(epoch)
        for place, (part, before) in enumerate(self._parts):
            if getattr(part, "epoch", None) == before:
                part.set_epoch(epoch)
                self._parts[place] = part, getattr(part, "epoch", None)


def _parts(source: Any) -> Iterator[Any]:
    """Yield what has a `set_epoch` among the parts of a DataLoader, each once."""
    if not isinstance(source, DataLoader):
        return
    batches = getattr(source.batch_sampler, "sampler", None)
    found = (source.dataset, source.sampler, source.batch_sampler, batches)
    yield from {id(part): part for part in found if hasattr(part, "set_epoch")}.values()
