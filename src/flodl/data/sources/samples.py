"""Data that are made one sample at a time: a torch map dataset, or anything with a length and items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import Subset

from ..batch import named
from ..sampling.global_rng import seed_globals
from .collate import stacked, stacked_rows
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
        lists_are_rows: bool = False,
    ) -> None:
        self.dataset = dataset
        self.transform = transform
        self.collate = collate
        self._stacked = stacked_rows if lists_are_rows else stacked
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
            return self._batch(self._many(list(indices)), indices)
        made = []
        for index, key in zip(indices, keys):
            seed_globals(key)
            sample = self.dataset[index]
            made.append(sample if self.transform is None else self.transform(sample))
        return self._batch(made, indices)

    def _batch(self, made: list[Any], indices: Sequence[int]) -> Any:
        batch = self._stacked(made, numbers=indices) if self.collate is None else self.collate(made)
        return named(batch, self.names)

    def read_all(self) -> Columns:
        """Make every sample once and keep them as columns; the global generators are left seeded."""
        batch = self.fetch(range(self.num_samples), range(self.num_samples))
        return Columns.of(batch)


def _batched_getter(dataset: Any) -> Callable[[list[int]], Any] | None:
    """Give the method that makes many samples at once; that of a torch subset only passes on."""
    inner = dataset.dataset if isinstance(dataset, Subset) else dataset
    return dataset.__getitems__ if hasattr(inner, "__getitems__") else None
