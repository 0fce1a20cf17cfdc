"""Data in arrays: one row for each sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flodl.core.errors import DataError

from ..batch import Form, named, parts_of

Array = Tensor | np.ndarray[Any, Any]

# Torch has these types and cannot gather them; the bits are those of another type.
_GATHERED_AS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class Columns:
    """Tensors or arrays of equal length, gathered by index; arrays that are mapped from a file stay there.

    >>> rows = Columns.of({"x": torch.arange(10), "y": np.arange(10) * 2})
    >>> rows.take(torch.tensor([3, 1]))
    {'x': tensor([3, 1]), 'y': tensor([6, 2])}
    """

    def __init__(self, columns: Sequence[Array], form: Form) -> None:
        self.columns = tuple(columns)
        self.form = form
        self.num_samples = len(columns[0])
        self.num_bytes = sum(_num_bytes(column) for column in columns)

    @classmethod
    def of(cls, source: Any, names: Sequence[str] | None = None) -> Columns:
        """Check the arrays and take them as columns."""
        form, parts = parts_of(named(source, names))
        if not parts:
            raise DataError("the source has no columns. Give at least one tensor or array.")
        labels = form.names or [str(place) for place in range(len(parts))]
        columns = [_usable(part, label) for part, label in zip(parts, labels)]
        lengths = {label: len(column) for label, column in zip(labels, columns)}
        if len(set(lengths.values())) > 1:
            raise DataError(f"the columns have unequal lengths {lengths}. Give each one row per sample.")
        devices = sorted({str(c.device) if isinstance(c, Tensor) else "cpu" for c in columns})
        if len(devices) > 1:
            raise DataError(f"the columns lie on {' and '.join(devices)}. Bring them to one device.")
        return cls(columns, form)

    @property
    def mapped(self) -> bool:
        """Whether a column lies in a file that is read as needed."""
        return any(isinstance(column, np.memmap) for column in self.columns)

    @property
    def device(self) -> torch.device:
        """Where the columns lie."""
        first = self.columns[0]
        return first.device if isinstance(first, Tensor) else torch.device("cpu")

    @property
    def versions(self) -> tuple[int, ...]:
        """How often each column was written to, as torch counts it; 0 where nobody counts.

        >>> numbers = torch.arange(3)
        >>> rows = Columns.of((numbers, np.arange(3)))
        >>> numbers += 1
        >>> rows.versions
        (1, 0)
        """
        return tuple(map(_version, self.columns))

    def take(self, indices: Tensor) -> Any:
        """Give these rows as a batch."""
        rows = map(rows_of, self.columns, repeat(indices))
        return tuple(rows) if self.form.kind == "tuple" else self.form.build(list(rows))

    def to(self, device: torch.device) -> Columns:
        """Give the same data in the memory of a device."""
        return Columns([_loaded(column).to(device) for column in self.columns], self.form)

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Any:
        # A copy: what is done to a sample must not reach the data.
        return self.form.build([rows_of(column, torch.tensor([index]))[0] for column in self.columns])


def is_array(value: object) -> bool:
    """Say whether a value can be a column."""
    return isinstance(value, (Tensor, np.ndarray))


def is_columns(source: object) -> bool:
    """Say whether a source is an array, or a tuple or dictionary of arrays."""
    if isinstance(source, Mapping):
        return bool(source) and all(is_array(value) for value in source.values())
    if isinstance(source, tuple):
        return bool(source) and all(is_array(value) for value in source)
    return is_array(source)


def _usable(column: Array, label: str) -> Array:
    if column.ndim == 0:
        raise DataError(f"column {label!r} is a single number. Give an array with one row per sample.")
    if isinstance(column, Tensor):
        return column.detach()
    try:
        torch.from_numpy(np.empty(0, dtype=column.dtype.newbyteorder("=")))
    except TypeError:
        raise DataError(
            f"column {label!r} has dtype {column.dtype}, which torch has no tensors for. "
            "Convert it to numbers first."
        ) from None
    if not isinstance(column, np.memmap):  # one in a file stays there, and its rows are converted
        column = native(column)
    # A read-only array cannot share its memory with a tensor; it is gathered as it is.
    shares = column.flags.writeable and column.flags.aligned and _is_native(column)
    return torch.from_numpy(column) if shares else column


def native(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Give an array that torch can take: in the byte order of this machine, and not flipped.

    >>> native(np.arange(3, dtype=">i4")[::-1]), native(np.arange(3)).base is None
    (array([2, 1, 0], dtype=int32), True)
    """
    if _is_native(array):
        return array
    return array.astype(array.dtype.newbyteorder("="), order="C", subok=False)


def _is_native(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype.isnative and all(stride >= 0 for stride in array.strides)


def rows_of(column: Array, indices: Tensor) -> Tensor:
    """Give these rows of a column as a tensor."""
    if isinstance(column, Tensor):
        twin = _GATHERED_AS.get(column.dtype)
        if twin is not None:
            return column.view(twin).index_select(0, indices).view(column.dtype)
        return column.index_select(0, indices)
    return torch.from_numpy(native(column[indices.numpy()]))


def _loaded(column: Array) -> Tensor:
    return column if isinstance(column, Tensor) else torch.from_numpy(native(np.array(column)))


def _version(column: Array) -> int:
    return column._version if isinstance(column, Tensor) and not column.is_inference() else 0


def _num_bytes(column: Array) -> int:
    return int(column.nbytes)
