"""How many samples are in a batch, by what the loader that gave it knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from flodl.data import Loader


def counted(batches: Iterable[Any]) -> Iterator[tuple[Any, int | None]]:
    """Give each batch with its number of samples; None where nobody but the batch itself can tell.

    >>> [samples for _, samples in counted(Loader(range(10), batch_size=4, shuffle=False))]
    [4, 4, 2]
    """
    if not isinstance(batches, Loader):
        yield from ((batch, None) for batch in batches)
        return
    before = batches.position
    for batch in batches:
        yield batch, _between(batches, before, batches.position)
        before = batches.position


class Counts:
    """Know the samples of the batch that was handed out last, for whoever trains on it.

    >>> counts = Counts()
    >>> [counts.of(batch) for batch in counts.noted(Loader(range(5), batch_size=3, shuffle=False))]
    [3, 2]
    """

    def __init__(self) -> None:
        self._batch: Any = None
        self._samples: int | None = None

    def noted(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Give the batches as they are, and note each with its samples."""
        for self._batch, self._samples in counted(batches):
            yield self._batch

    def of(self, batch: Any) -> int | None:
        """Give the samples of this batch, whole or taken apart into its parts; None for any other."""
        noted = self._batch
        if batch is noted:
            return self._samples
        if not isinstance(batch, tuple | list) or not isinstance(noted, tuple | list):
            return None
        same = len(batch) == len(noted) and all(mine is theirs for mine, theirs in zip(batch, noted))
        return self._samples if same else None


def _between(loader: Loader, before: int, after: int) -> int | None:
    """Give the samples that lie between two positions of a loader."""
    if loader.batch_size is None:
        # The source gives whole batches, and a position counts those.
        return None if loader.torch_loader is None else _of_torch(loader.torch_loader, before)
    return after - before


def _of_torch(loader: DataLoader[Any], number: int) -> int | None:
    """Give the samples in a batch of torch's loader, by its number in the epoch, where they are as usual."""
    if type(loader.batch_sampler) is not BatchSampler:
        return None
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        return None
    left = len(loader.sampler) - number * loader.batch_size  # type: ignore[arg-type]
    return min(loader.batch_size, left) if left > 0 else None
