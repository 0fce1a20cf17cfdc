"""Data in tensors or arrays with one row per sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flodl.core.errors import DataError

from ..batch import BatchStructure, apply_names, split_parts
from .dense import check_dense

Array = Tensor | np.ndarray[Any, Any]

# Torch cannot gather these types, so they are viewed as signed integers of the same width.
_GATHERED_AS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class Columns:
    """Tensors or arrays of equal length, gathered by index; memory-mapped arrays stay in their files.

    >>> rows = Columns.of({"x": torch.arange(10), "y": np.arange(10) * 2})
    >>> rows.take(torch.tensor([3, 1]))
    {'x': tensor([3, 1]), 'y': tensor([6, 2])}
    """

    def __init__(self, columns: Sequence[Array], structure: BatchStructure) -> None:
        self.columns = tuple(columns)
        self.structure = structure
        self.num_samples = len(columns[0])
        self.num_bytes = sum(_num_bytes(column) for column in columns)

    @classmethod
    def of(cls, source: Any, names: Sequence[str] | None = None) -> Columns:
        """Return checked arrays as columns."""
        structure, parts = split_parts(apply_names(source, names))
        if not parts:
            raise DataError("the source has no columns. Pass at least one tensor or array.")
        labels = structure.names or [str(index) for index in range(len(parts))]
        columns = [_as_column(part, label) for part, label in zip(parts, labels)]
        lengths = {label: len(column) for label, column in zip(labels, columns)}
        if len(set(lengths.values())) > 1:
            raise DataError(f"the columns have unequal lengths {lengths}. Each needs one row per sample.")
        devices = sorted({str(c.device) if isinstance(c, Tensor) else "cpu" for c in columns})
        if len(devices) > 1:
            raise DataError(f"the columns are on {' and '.join(devices)}. Move them to one device.")
        return cls(columns, structure)

    @property
    def mapped(self) -> bool:
        """Whether a column is memory-mapped."""
        return any(isinstance(column, np.memmap) for column in self.columns)

    @property
    def device(self) -> torch.device:
        """The device of the columns."""
        first = self.columns[0]
        return first.device if isinstance(first, Tensor) else torch.device("cpu")

    @property
    def versions(self) -> tuple[int, ...]:
        """The version counter of each tensor, which torch increments on writes; 0 for arrays.

        >>> numbers = torch.arange(3)
        >>> rows = Columns.of((numbers, np.arange(3)))
        >>> numbers += 1
        >>> rows.versions
        (1, 0)
        """
        return tuple(map(_version, self.columns))

    def take(self, indices: Tensor) -> Any:
        """Return these rows as a batch."""
        rows = map(gather_rows, self.columns, repeat(indices))
        return tuple(rows) if self.structure.kind == "tuple" else self.structure.build(list(rows))

    def to(self, device: torch.device) -> Columns:
        """Return the same data in the memory of a device."""
        return Columns([_to_tensor(column).to(device) for column in self.columns], self.structure)

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Any:
        # A copy: changing a sample must not change the data.
        return self.structure.build(
            [gather_rows(column, torch.tensor([index]))[0] for column in self.columns]
        )


def is_array(value: object) -> bool:
    """Return whether a value can be a column."""
    return isinstance(value, (Tensor, np.ndarray))


def is_columns(source: object) -> bool:
    """Return whether a source is an array, or a tuple or dict of arrays."""
    if isinstance(source, Mapping):
        return bool(source) and all(is_array(value) for value in source.values())
    if isinstance(source, tuple):
        return bool(source) and all(is_array(value) for value in source)
    return is_array(source)


def _check_detached(column: Tensor, label: str) -> None:
    """Raise if a column has a gradient to compute, which batches of a loader do not pass on."""
    if column.grad_fn is not None:
        raise DataError(
            f"column {label!r} was computed from parameters or inputs that require gradients "
            f"({column.grad_fn.name()}), and batches have no autograd history: nothing would be trained "
            "through them. Compute it inside the step function, or pass x.detach()."
        )
    if column.requires_grad:
        raise DataError(
            f"column {label!r} requires a gradient, and batches are copies without one. Pass x.detach(). For "
            "derivatives with respect to the inputs, write x = x.requires_grad_() in the step function."
        )


def _as_column(column: Array, label: str) -> Array:
    check_dense(column, f"column {label!r}")
    if column.ndim == 0:
        raise DataError(f"column {label!r} is a single number. Pass an array with one row per sample.")
    if isinstance(column, Tensor):
        _check_detached(column, label)
        return column.detach()  # a new object, so that nothing changes the column itself
    try:
        torch.from_numpy(np.empty(0, dtype=column.dtype.newbyteorder("=")))
    except TypeError:
        raise DataError(
            f"column {label!r} has dtype {column.dtype}, which torch does not support. "
            "Convert it to numbers first."
        ) from None
    if not isinstance(column, np.memmap):  # a mapped array stays in its file, and its rows are converted
        column = to_native(column)
    # A read-only array cannot share its memory with a tensor; it is gathered with NumPy.
    shares = column.flags.writeable and column.flags.aligned and _is_native(column)
    return torch.from_numpy(column) if shares else column


def to_native(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array that torch accepts: in native byte order, without negative strides.

    >>> to_native(np.arange(3, dtype=">i4")[::-1]), to_native(np.arange(3)).base is None
    (array([2, 1, 0], dtype=int32), True)
    """
    if _is_native(array):
        return array
    return array.astype(array.dtype.newbyteorder("="), order="C", subok=False)


def _is_native(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype.isnative and all(stride >= 0 for stride in array.strides)


def gather_rows(column: Array, indices: Tensor) -> Tensor:
    """Return these rows of a column as a tensor."""
    if isinstance(column, Tensor):
        signed = _GATHERED_AS.get(column.dtype)
        if signed is not None:
            return column.view(signed).index_select(0, indices).view(column.dtype)
        return column.index_select(0, indices)
    return torch.from_numpy(to_native(column[indices.numpy()]))


def _to_tensor(column: Array) -> Tensor:
    return column if isinstance(column, Tensor) else torch.from_numpy(to_native(np.array(column)))


def _version(column: Array) -> int:
    return column._version if isinstance(column, Tensor) and not column.is_inference() else 0


def _num_bytes(column: Array) -> int:
    return int(column.nbytes)
