"""The number of samples in a batch, where the loader knows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset

from flodl.data import Loader

# Batches, each with its number of samples, or None where only the batch itself can tell.
Batches = Iterable[tuple[Any, int | None]]


def with_num_samples(batches: Iterable[Any]) -> Iterator[tuple[Any, int | None]]:
    """Yield each batch with its number of samples, or None where only the batch itself can tell.

    >>> [samples for _, samples in with_num_samples(Loader(range(10), batch_size=4, shuffle=False))]
    [4, 4, 2]
    """
    if not isinstance(batches, Loader):
        yield from ((batch, None) for batch in batches)
        return
    before = batches.position
    for batch in batches:
        has_size, after = batches.batch_size is not None, batches.position
        yield batch, after - before if has_size else num_samples_of_batch(batches, before)
        before = batches.position


def num_samples_of_batch(loader: Loader, index: int) -> int | None:
    """Return the samples in batch `index` of a loader whose source yields whole batches, or None."""
    torch_loader = loader.torch_loader
    if torch_loader is None or type(torch_loader.batch_sampler) is not BatchSampler:
        return None
    if isinstance(torch_loader.dataset, IterableDataset) or torch_loader.batch_size is None:
        return None
    left = len(torch_loader.sampler) - index * torch_loader.batch_size  # type: ignore[arg-type]
    return min(torch_loader.batch_size, left) if left > 0 else None
