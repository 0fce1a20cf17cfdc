"""The protocol of a source that can be gathered, and the conversion of what users pass to a source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from flodl.core.errors import DataError
from flodl.core.formats import a_type

from ..sampling.indices import check_no_generator, check_not_mask
from .arrow import arrow_columns, is_arrow, is_arrow_table, is_hugging_face
from .batches import Batches, BatchSource
from .columns import Columns, is_array, is_columns
from .dense import check_dense
from .samples import Collate, Samples, Transform
from .streams import Stream


@runtime_checkable
class GatherSource(Protocol):
    """A source that can gather any rows as a batch, and can be copied to a device as a whole."""

    num_samples: int
    num_bytes: int

    @property
    def mapped(self) -> bool:
        """Whether the data is in memory-mapped files."""
        ...

    @property
    def device(self) -> torch.device:
        """The device on which `take` expects indices."""
        ...

    def take(self, indices: Tensor) -> Any:
        """Return these samples as a batch."""
        ...

    def to(self, device: torch.device) -> GatherSource:
        """Return the same data in the memory of a device."""
        ...


Source = GatherSource | Samples | Stream | Batches


def open_source(
    source: Any,
    *,
    transform: Transform | None = None,
    collate: Collate | None = None,
    names: Sequence[str] | None = None,
    buffer: int = 0,
    whole_batches: bool = False,
) -> tuple[Source, str]:
    """Return the source, and a reason if it is unexpectedly read sample by sample.

    With `whole_batches`, a list is read like an iterable, in its own order.

    >>> open_source((torch.zeros(3, 2), torch.zeros(3)))[0].num_samples
    3
    """
    if isinstance(source, type):
        raise DataError(f"the source is the class {source.__name__}. Pass an object: {source.__name__}(…).")
    if isinstance(source, BatchSource):
        if transform is not None or collate is not None or names is not None:
            raise DataError(
                f"transform=, collate= and names= cannot be used with {a_type(source)}, which makes "
                "its own batches."
            )
        return Batches(source), ""
    if isinstance(source, DataLoader):
        check_no_generator(source)
    is_batch_list = whole_batches and isinstance(source, list)
    if is_batch_list or isinstance(source, (IterableDataset, Iterator)) or _only_iterates(source):
        return Stream(source, transform=transform, collate=collate, names=names, buffer=buffer), ""
    gathered, reason = _as_gather_source(source, names)
    is_unchanged = transform is None and collate is None and (names is None or isinstance(gathered, Columns))
    if gathered is not None and is_unchanged:
        return gathered, ""
    if gathered is None and not _has_items(source):
        if hasattr(source, "__getitem__") and not isinstance(source, (str, bytes)):
            raise DataError(
                f"the source is {a_type(source)}, which has __getitem__ but no __len__: the number "
                "of samples is not known. Add def __len__(self), which returns it. For samples without a "
                "known number, write an IterableDataset with __iter__ instead."
            )
        raise DataError(
            f"the source is {a_type(source)}, which a loader cannot read. Pass tensors or arrays "
            "(one, a tuple, a dict), a torch dataset, an Arrow table, a Hugging Face dataset, "
            "or an iterable."
        )
    if isinstance(gathered, Columns):
        source, names = gathered, None
    # In a Hugging Face dataset, a list is a row, whether the columns are tensors or the dataset is iterated.
    as_rows = is_hugging_face(source)
    samples = Samples(source, transform=transform, collate=collate, names=names, lists_are_rows=as_rows)
    return samples, reason


def _rows_of_subset(indices: Any, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the rows of a torch Subset; negative indices count from the end, as in torch."""
    for number, tensor in enumerate(tensors):
        check_dense(tensor, f"column '{number}'")
    check_not_mask(indices, what="the argument of the Subset", argument="indices")
    rows, count = torch.as_tensor(indices), len(tensors[0])
    if rows.numel() == 0:
        raise DataError("the Subset has no samples. Pass at least one index to it.")
    if rows.dim() != 1 or rows.is_floating_point():
        raise DataError(f"the Subset has indices {tuple(rows.shape)} {rows.dtype}. Pass a list of integers.")
    if not -count <= int(rows.min()) <= int(rows.max()) < count:
        wrong = int(rows.min()) if int(rows.min()) < -count else int(rows.max())
        raise DataError(f"the Subset has index {wrong} for {count} samples. Pass indices below {count}.")
    rows = rows.to(torch.int64)
    rows = torch.where(rows < 0, rows + count, rows)
    return tuple(tensor.index_select(0, rows.to(tensor.device)) for tensor in tensors)


def _only_iterates(source: object) -> bool:
    return (
        isinstance(source, Iterable)
        and not hasattr(source, "__getitem__")
        and not isinstance(source, GatherSource)
    )


def _has_items(source: object) -> bool:
    return (
        not isinstance(source, (str, bytes)) and hasattr(source, "__getitem__") and hasattr(source, "__len__")
    )


def _is_frame(source: object) -> bool:
    """Return whether a source is a DataFrame of pandas or polars, without importing either."""
    package = type(source).__module__.split(".")[0]
    return package in ("pandas", "polars") and hasattr(source, "columns")


def columns_of_table(source: Any) -> Columns | None:
    """Return the columns of an Arrow table or of a DataFrame of numbers; None for any other source."""
    if is_arrow_table(source):
        return arrow_columns(source, None)[0]
    columns = _columns_of_frame(source) if _is_frame(source) else None
    return Columns.of(columns) if is_columns(columns) else None


def _columns_of_frame(frame: Any) -> dict[str, Any]:
    return {str(name): frame[name].to_numpy() for name in frame.columns}


def _as_gather_source(source: Any, names: Sequence[str] | None) -> tuple[GatherSource | None, str]:
    if isinstance(source, GatherSource):
        return source, ""
    if isinstance(source, TensorDataset):
        return Columns.of(source.tensors, names), ""
    if isinstance(source, Subset) and isinstance(source.dataset, TensorDataset):
        return Columns.of(_rows_of_subset(source.indices, source.dataset.tensors), names), ""
    if _is_frame(source):
        source = _columns_of_frame(source)
    if is_columns(source):
        return Columns.of(source, names), ""
    if is_arrow(source):
        return arrow_columns(source, names)
    if isinstance(source, Mapping):
        kinds = _types_of(source.values())
        raise DataError(
            f"the source is a dict of {kinds}. Pass a dict of tensors or arrays, "
            f"or one of its values, for example source[{next(iter(source), 'train')!r}]."
        )
    if isinstance(source, tuple):
        raise DataError(f"the source is a tuple of {_types_of(source)}. {_advice_for_parts(source)}")
    return None, ""


def _types_of(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(type(value).__name__ for value in values)) or "nothing"


def _advice_for_parts(parts: tuple[Any, ...]) -> str:
    """Return what to pass instead of the parts that cannot be columns.

    >>> _advice_for_parts(([torch.zeros(2), torch.zeros(2)], torch.zeros(2)))
    'Part 0 is a list of tensors: pass torch.stack(…) of it.'
    """
    for index, part in enumerate(parts):
        if isinstance(part, list) and part and all(map(is_array, part)):
            what = f"Part {index} is a list of {'tensors' if isinstance(part[0], Tensor) else 'arrays'}"
            if len({tuple(one.shape) for one in part}) == 1:
                return f"{what}: pass {'torch' if isinstance(part[0], Tensor) else 'np'}.stack(…) of it."
            return (
                f"{what} of different shapes. Pass a list of samples to a Loader, with a function that pads "
                "them: Loader(list(zip(inputs, targets)), batch_size=…, collate=pad)."
            )
    return "Pass tensors or arrays."
