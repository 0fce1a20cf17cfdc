"""Data that are made one sample at a time: a torch map dataset, or anything with a length and items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import Subset, default_collate

from flodl.core.errors import DataError

from ..form import named
from ..seeding import seed_globals
from .columns import Columns

Collate = Callable[[list[Any]], Any]
Transform = Callable[[Any], Any]


class Samples:
    """Samples by number, each made with the global generators seeded for its place in the epoch.

    So an item that is random is the same whichever process makes it, and after a resume.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        transform: Transform | None = None,
        collate: Collate | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.dataset = dataset
        self.transform = transform
        self.collate = collate or stacked
        self.names = names
        self.num_samples = len(dataset)
        self._many = _batched_getter(dataset)

    @property
    def label(self) -> str:
        """What the samples come from, for messages."""
        return type(self.dataset).__name__

    def fetch(self, indices: Sequence[int], keys: Sequence[int]) -> Any:
        """Make these samples and put them into a batch; the global generators are left seeded."""
        if self._many is not None and self.transform is None:
            seed_globals(keys[0])
            return named(self.collate(self._many(list(indices))), self.names)
        made = []
        for index, key in zip(indices, keys):
            seed_globals(key)
            sample = self.dataset[index]
            made.append(sample if self.transform is None else self.transform(sample))
        return named(self.collate(made), self.names)

    def read_all(self) -> Columns:
        """Make every sample once and keep them as columns; the global generators are left seeded."""
        batch = self.fetch(range(self.num_samples), range(self.num_samples))
        return Columns.of(batch)


def _batched_getter(dataset: Any) -> Callable[[list[int]], Any] | None:
    """Give the method that makes many samples at once; that of a torch subset only passes on."""
    inner = dataset.dataset if isinstance(dataset, Subset) else dataset
    return dataset.__getitems__ if hasattr(inner, "__getitems__") else None


def stacked(samples: list[Any]) -> Any:
    """Put samples into a batch as torch does; a batch of tuples is a tuple here, not a list.

    >>> stacked([(1, 2.0), (3, 4.0)])
    (tensor([1, 3]), tensor([2., 4.], dtype=torch.float64))
    """
    try:
        batch = default_collate(samples)
    except (RuntimeError, TypeError) as error:
        raise DataError(
            f"{len(samples)} samples cannot be put into one batch: {str(error).splitlines()[0].rstrip('.')}. "
            "Give collate= a function that does it, for example by padding. Columns come as a tuple (x, y), "
            "a list holds samples."
        ) from error
    return tuple(batch) if isinstance(batch, list) else batch
