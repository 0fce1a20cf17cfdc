"""Data created one sample at a time: a torch map-style dataset, or anything with a length and items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CoroutineType
from typing import Any

from torch.utils.data import Subset

from flodl.core.errors import DataError
from flodl.core.formats import a_type, counted, with_article

from ..batch import apply_names
from ..sampling.global_rng import seed_global_rng
from .collate import collate_lists_as_rows, collate_samples
from .columns import Columns

Collate = Callable[[list[Any]], Any]
Transform = Callable[[Any], Any]


class Samples:
    """Samples by index, each created with the global generators seeded for its position in the epoch.

    So a random item is the same whichever process creates it, and after a resume.
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
        self._default_collate = collate_lists_as_rows if lists_are_rows else collate_samples
        self.names = names
        self.num_samples = self._length()
        self._get_many = _batched_getter(dataset)

    @property
    def label(self) -> str:
        """The type of the dataset, for messages."""
        return type(self.dataset).__name__

    def fetch(self, indices: Sequence[int], keys: Sequence[int]) -> Any:
        """Return these samples as a batch; the global generators stay seeded."""
        if self._get_many is not None and self.transform is None:
            seed_global_rng(keys[0])
            try:
                found = self._get_many(list(indices))
            except Exception as error:
                error.add_note(
                    f"__getitems__ of {with_article(self.label)} was called for {_listed(indices)}."
                )
                raise
            return self._batch(found, indices)
        samples = []
        for index, key in zip(indices, keys):
            seed_global_rng(key)
            samples.append(self._sample(index))
        return self._batch(samples, indices)

    def check_length(self) -> None:
        """Raise if the dataset has more or fewer samples than at the start."""
        current = self._length()
        if current != self.num_samples:
            raise DataError(
                f"the {self.label} had {self.num_samples} samples when the loader was created, and has "
                f"{current} now. Create a new loader."
            )

    def _length(self) -> int:
        try:
            return len(self.dataset)
        except (TypeError, ValueError) as error:
            raise DataError(f"the length of the {self.label} cannot be read: {error}.") from error

    def _sample(self, index: int) -> Any:
        try:
            sample = self.dataset[index]
        except Exception as error:
            length = f" whose length is {self.num_samples}" if isinstance(error, IndexError) else ""
            error.add_note(f"This is sample {index} of {with_article(self.label)}{length}.")
            raise
        return sample if self.transform is None else apply_transform(self.transform, sample, index)

    def _batch(self, samples: list[Any], indices: Sequence[int]) -> Any:
        if self.collate is None:
            return apply_names(self._default_collate(samples, indices=indices), self.names)
        return apply_names(apply_collate(self.collate, samples, indices), self.names)

    def read_all(self) -> Columns:
        """Create every sample once and return them as columns; the global generators stay seeded."""
        batch = self.fetch(range(self.num_samples), range(self.num_samples))
        return Columns.of(batch)


def apply_collate(collate: Collate, samples: list[Any], indices: Sequence[int] | None = None) -> Any:
    """Collate samples with a function of the user; an error says what it was called with."""
    try:
        batch = collate(samples)
    except Exception as error:
        which = "" if indices is None else f": {_listed(indices)}"
        first = f", the first of which is {_kind_of(samples[0])}" if samples else ""
        error.add_note(f"collate was called with a list of {counted(len(samples), 'sample')}{first}{which}.")
        raise
    if isinstance(batch, CoroutineType):
        batch.close()  # else Python warns that it was never awaited
        raise DataError(
            "collate returned a coroutine, which is not a batch: calling an async function runs none of "
            "its code. Write a plain function: def collate(samples)."
        )
    if batch is None:
        raise DataError("collate returned None, which is not a batch. Is a return statement missing?")
    return batch


def _listed(indices: Sequence[int]) -> str:
    """Return the indices of samples, the first ones of many.

    >>> _listed([3, 1]), _listed(range(100))
    ('samples 3, 1', 'samples 0, 1, 2, 3, 4, 5, 6, 7, …')
    """
    shown = [str(index) for index in indices[:8]] + ["…"] * (len(indices) > 8)
    return f"samples {', '.join(shown)}"


def apply_transform(transform: Transform, sample: Any, index: int | None = None) -> Any:
    """Transform a sample; an error says what the transform was called with."""
    try:
        return transform(sample)
    except Exception as error:
        which = "" if index is None else f" This is sample {index}."
        error.add_note(
            f"transform was called with a whole sample, {_kind_of(sample)}. For a sample (x, y), write "
            f"transform=lambda sample: (change(sample[0]), sample[1]).{which}"
        )
        raise


def _kind_of(sample: Any) -> str:
    """Describe a sample.

    >>> _kind_of((1, "a")), _kind_of({"x": 1})
    ('a tuple of int and str', "a dict with the keys 'x'")
    """
    if isinstance(sample, dict):
        return f"a dict with the keys {', '.join(map(repr, [*sample][:6]))}"
    if isinstance(sample, tuple | list) and 0 < len(sample) <= 6:
        return f"{a_type(sample)} of {' and '.join(type(part).__name__ for part in sample)}"
    return f"of type {type(sample).__name__}"


def _batched_getter(dataset: Any) -> Callable[[list[int]], Any] | None:
    """Return the method that creates several samples at once; a torch Subset only forwards to its dataset."""
    inner = dataset.dataset if isinstance(dataset, Subset) else dataset
    return dataset.__getitems__ if hasattr(inner, "__getitems__") else None
