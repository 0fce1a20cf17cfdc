"""Arrow tables and Hugging Face datasets, converted to tensors once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flodl.core.errors import DataError

from .columns import Array, Columns, is_array


def is_arrow(source: object) -> bool:
    """Return whether a source is an Arrow table or a Hugging Face dataset, without importing either."""
    return is_arrow_table(source) or _is_dataset(source)


def is_arrow_table(source: object) -> bool:
    """Return whether a source is an Arrow table, without importing pyarrow."""
    return type(source).__module__.startswith("pyarrow") and hasattr(source, "column_names")


def is_hugging_face(source: object) -> bool:
    """Return whether the type of an object is from the package `datasets`, without importing it."""
    return type(source).__module__.startswith("datasets.")


def _is_dataset(source: object) -> bool:
    """Return whether a source is a Hugging Face dataset with a length, not an iterable or a dict of them."""
    return (
        is_hugging_face(source)
        and not isinstance(source, Mapping)
        and hasattr(source, "with_format")
        and hasattr(source, "__getitem__")
    )


def arrow_columns(source: Any, names: Sequence[str] | None) -> tuple[Columns | None, str]:
    """Return the columns as tensors; for a dataset that is not all numbers, None and the reason.

    The types are those of the dataset's format. A dataset with its own transform is read sample by sample. A
    table cannot be, so it raises an error instead.
    """
    if _is_dataset(source):
        return _dataset_columns(source, names)
    arrays = {}
    for name in _check_names(names or source.column_names, source.column_names):
        array, why = _to_array(source.column(name))
        if array is None:
            raise DataError(f"column {name!r} {why}. Exclude it with names=, or convert it first.")
        arrays[name] = array
    return Columns.of(arrays), ""


def _dataset_columns(source: Any, names: Sequence[str] | None) -> tuple[Columns | None, str]:
    format = source.format
    kind = format["type"]
    if kind not in (None, "torch", "numpy", "arrow"):
        return None, f"the dataset has the format {kind!r}"
    if kind is not None and format["output_all_columns"]:
        return None, "the dataset formats only some of its columns"
    selected = _check_names(
        names or (format["columns"] if kind else source.column_names), source.column_names
    )
    table = source.with_format("arrow").select_columns(selected)[:]
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name in selected:
        array, why = _to_array(table.column(name))
        if array is None:
            return None, f"column {name!r} {why}"
        arrays[name] = array
    if kind not in ("torch", "numpy"):
        return Columns.of(arrays), ""
    # Format a single row, and cast the columns to its types.
    row = source.with_format(kind, columns=selected, **format["format_kwargs"])[:1]
    for name, array in arrays.items():
        if not is_array(row[name]) or row[name].shape[1:] != array.shape[1:]:
            return None, f"the format {kind!r} does not convert column {name!r} to an array of the same shape"
    return Columns.of({name: _cast(array, row[name]) for name, array in arrays.items()}), ""


def _cast(array: np.ndarray[Any, Any], like: Array) -> Array:
    return torch.from_numpy(array).to(like) if isinstance(like, Tensor) else array.astype(like.dtype)


def _check_names(names: Sequence[str], columns: Sequence[str]) -> list[str]:
    missing = [name for name in names if name not in columns]
    if missing:
        raise DataError(f"names has {missing[0]!r}, but the table has the columns {list(columns)}.")
    return list(names)


def _to_array(column: Any) -> tuple[np.ndarray[Any, Any] | None, str]:
    """Return one column as an array with a row per sample, or None and the reason."""
    pa: Any = import_module("pyarrow")  # imported only if the source uses it
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(column, pa.ChunkedArray):  # of an empty or very large column
        column = pa.concat_arrays(column.chunks)
    shape = [len(column)]
    kind = column.type
    while True:
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        if column.null_count:
            return None, "has missing values"
        kind = column.type
        if pa.types.is_fixed_size_list(kind):
            shape.append(kind.list_size)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            lengths = np.diff(column.offsets.to_numpy(zero_copy_only=False))
            if len(lengths) and lengths.min() != lengths.max():
                return None, f"has lists of {lengths.min()} to {lengths.max()} items"
            shape.append(int(lengths[0]) if len(lengths) else 0)
        else:
            break
        column = column.flatten()
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return None, f"contains {kind}, not numbers"
    values = np.array(column.to_numpy(zero_copy_only=False))
    return values.reshape(shape), ""
