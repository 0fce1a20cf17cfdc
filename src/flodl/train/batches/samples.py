"""The number of samples in a batch, where the loader knows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import BatchSampler, IterableDataset

from flodl.core import log
from flodl.data import Loader
from flodl.engine import leading_lengths, shapes_in

# Batches, each with its number of samples, or None where only the batch itself can tell.
Batches = Iterable[tuple[Any, int | None]]


class SampleCounts:
    """Count the samples of batches: what the loader read, or fewer if a collate function dropped some.

    >>> import torch
    >>> SampleCounts().of((torch.zeros(3, 2), torch.zeros(3)), 4), SampleCounts().of(torch.zeros(3, 4, 2), 4)
    (3, 4)
    """

    def __init__(self) -> None:
        self._has_warned = False

    def of(self, batch: Any, num_read: int) -> int:
        """Return the number of samples in a batch that was made from `num_read` samples."""
        first = batch[0] if type(batch) in (tuple, list) and batch else batch
        # The usual case, without a look at the other tensors.
        if type(first) is Tensor and first.dim() and len(first) == num_read:
            return num_read
        parts = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
        lengths = leading_lengths(parts)
        if not lengths or max(lengths) >= num_read or min(lengths) == 0:
            return num_read
        shapes = shapes_in(parts)
        if len(lengths) == 1 and not _is_transposed(shapes, num_read):
            return lengths[0]
        if len(lengths) > 1 and not self._has_warned and not any(num_read in shape for shape in shapes):
            self._has_warned = True
            log.warn(
                "the loader read %d samples for a batch, but its tensors have %s rows; it counts as %d "
                "samples. If the collate function or augment drops samples, return one row per sample in "
                "every tensor.",
                num_read,
                " and ".join(map(str, lengths)),
                num_read,
            )
        return num_read


def _is_transposed(shapes: list[tuple[int, ...]], num_read: int) -> bool:
    """Return whether the rows of all tensors are something else: time steps, or texts packed into one row."""
    if any(len(shape) < 2 for shape in shapes):
        return False
    seconds = {shape[1] for shape in shapes}
    is_packed = shapes[0][0] == 1 and len(seconds) == 1 and min(seconds) > num_read
    return seconds == {num_read} or is_packed


def with_num_samples(
    batches: Iterable[Any], counts: SampleCounts | None = None
) -> Iterator[tuple[Any, int | None]]:
    """Yield each batch with its number of samples, or None where only the batch itself can tell.

    >>> [samples for _, samples in with_num_samples(Loader(range(10), batch_size=4, shuffle=False))]
    [4, 4, 2]
    """
    if not isinstance(batches, Loader):
        yield from ((batch, None) for batch in batches)
        return
    counts, before = counts or SampleCounts(), batches.position
    for batch in batches:
        yield batch, num_samples_of_batch(batches, batch, before, batches.position, counts)
        before = batches.position


def num_samples_of_batch(
    loader: Loader, batch: Any, before: int, after: int, counts: SampleCounts
) -> int | None:
    """Return the samples in a batch between two positions of a loader, or None."""
    if loader.batch_size is None:
        # The source yields whole batches, and positions count those.
        num_read = _num_read_by_torch(loader, before)
        return None if num_read is None else counts.of(batch, num_read)
    # A source that makes its own batches may pack several samples into a row.
    return after - before if loader.makes_own_batches else counts.of(batch, after - before)


def _num_read_by_torch(loader: Loader, index: int) -> int | None:
    """Return how many samples a torch DataLoader reads for batch `index`, or None."""
    torch_loader = loader.torch_loader
    if torch_loader is None or type(torch_loader.batch_sampler) is not BatchSampler:
        return None
    if isinstance(torch_loader.dataset, IterableDataset) or torch_loader.batch_size is None:
        return None
    left = len(torch_loader.sampler) - index * torch_loader.batch_size  # type: ignore[arg-type]
    return min(torch_loader.batch_size, left) if left > 0 else None
