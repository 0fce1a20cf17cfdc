"""From what the user gives to a source that the loader can read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from flodl.core.errors import DataError

from ..sampling.samplers import refuse_generator
from .arrow import arrow_columns, is_arrow, is_hugging_face
from .columns import Columns, is_columns
from .samples import Collate, Samples, Transform
from .streams import Stream


@runtime_checkable
class Gathered(Protocol):
    """A source that gives any rows as a batch, and can move to a device as a whole."""

    num_samples: int
    num_bytes: int

    @property
    def mapped(self) -> bool:
        """Whether the data lie in files that are read as needed."""
        ...

    @property
    def device(self) -> torch.device:
        """Where indices have to lie for `take`."""
        ...

    def take(self, indices: Tensor) -> Any:
        """Give these samples as a batch."""
        ...

    def to(self, device: torch.device) -> Gathered:
        """Give the same data in the memory of a device."""
        ...


Source = Gathered | Samples | Stream


def open_source(
    source: Any,
    *,
    transform: Transform | None = None,
    collate: Collate | None = None,
    names: Sequence[str] | None = None,
    buffer: int = 0,
    whole_batches: bool = False,
) -> tuple[Source, str]:
    """Give the source, and why it is read sample by sample where that was not plain.

    A list of `whole_batches` is read as an iterable is, in its own order.

    >>> open_source((torch.zeros(3, 2), torch.zeros(3)))[0].num_samples
    3
    """
    if isinstance(source, DataLoader):
        refuse_generator(source)
    given_whole = whole_batches and isinstance(source, list)
    if given_whole or isinstance(source, (IterableDataset, Iterator)) or _only_iterates(source):
        return Stream(source, transform=transform, collate=collate, names=names, buffer=buffer), ""
    opened, why = _gathered(source, names)
    as_it_is = transform is None and collate is None and (names is None or isinstance(opened, Columns))
    if opened is not None and as_it_is:
        return opened, ""
    if opened is None and not _has_items(source):
        raise DataError(
            f"the source is a {type(source).__name__}, which a loader cannot read. Give tensors or arrays "
            "(one, a tuple, a dictionary), a torch dataset, an Arrow table, a Hugging Face dataset, "
            "or an iterable."
        )
    if isinstance(opened, Columns):
        source, names = opened, None
    # What it has as a list is a row when its columns are tensors, and when it is iterated over.
    as_rows = is_hugging_face(source)
    return Samples(source, transform=transform, collate=collate, names=names, lists_are_rows=as_rows), why


def _only_iterates(source: object) -> bool:
    return (
        isinstance(source, Iterable)
        and not hasattr(source, "__getitem__")
        and not isinstance(source, Gathered)
    )


def _has_items(source: object) -> bool:
    return (
        not isinstance(source, (str, bytes)) and hasattr(source, "__getitem__") and hasattr(source, "__len__")
    )


def _is_frame(source: object) -> bool:
    """Say whether a source is a table of pandas or polars, without importing either."""
    package = type(source).__module__.split(".")[0]
    return package in ("pandas", "polars") and hasattr(source, "columns")


def _gathered(source: Any, names: Sequence[str] | None) -> tuple[Gathered | None, str]:
    if isinstance(source, Gathered):
        return source, ""
    if isinstance(source, TensorDataset):
        return Columns.of(source.tensors, names), ""
    if isinstance(source, Subset) and isinstance(source.dataset, TensorDataset):
        chosen = torch.as_tensor(source.indices, dtype=torch.int64)
        return Columns.of(tuple(t.index_select(0, chosen) for t in source.dataset.tensors), names), ""
    if _is_frame(source):
        source = {str(name): source[name].to_numpy() for name in source.columns}
    if is_columns(source):
        return Columns.of(source, names), ""
    if is_arrow(source):
        return arrow_columns(source, names)
    if isinstance(source, Mapping):
        kinds = sorted({type(value).__name__ for value in source.values()})
        raise DataError(
            f"the source is a dictionary of {', '.join(kinds) or 'nothing'}. Give tensors or arrays by name, "
            f"or one of its values, for example source[{next(iter(source), 'train')!r}]."
        )
    if isinstance(source, tuple):
        kinds = sorted({type(value).__name__ for value in source})
        raise DataError(f"the source is a tuple of {', '.join(kinds) or 'nothing'}. Give tensors or arrays.")
    return None, ""
