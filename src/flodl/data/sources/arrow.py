"""Arrow tables and Hugging Face datasets, turned into tensors once."""

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
    """Say whether a source is an Arrow table or a Hugging Face dataset, without importing either."""
    return _is_table(source) or _is_dataset(source)


def _is_table(source: object) -> bool:
    return type(source).__module__.startswith("pyarrow") and hasattr(source, "column_names")


def is_hugging_face(source: object) -> bool:
    """Say whether something comes from the package `datasets`, without importing it."""
    return type(source).__module__.startswith("datasets.")


def _is_dataset(source: object) -> bool:
    """A Hugging Face dataset with a length; its iterable sort is read as any iterable.

    A dictionary of them is none.
    """
    return (
        is_hugging_face(source)
        and not isinstance(source, Mapping)
        and hasattr(source, "with_format")
        and hasattr(source, "__getitem__")
    )


def arrow_columns(source: Any, names: Sequence[str] | None) -> tuple[Columns | None, str]:
    """Give the columns as tensors; of a dataset that is not all numbers, nothing and the reason.

    The types are those that the format of a dataset gives. One with a transform of its own gives what that
    makes of it, sample by sample. A table has no samples to fall back on, and is refused.
    """
    if _is_dataset(source):
        return _dataset_columns(source, names)
    arrays = {}
    for name in _known(names or source.column_names, source.column_names):
        array, why = _array(source.column(name))
        if array is None:
            raise DataError(f"column {name!r} {why}. Leave it out with names=, or convert it first.")
        arrays[name] = array
    return Columns.of(arrays), ""


def _dataset_columns(source: Any, names: Sequence[str] | None) -> tuple[Columns | None, str]:
    form = source.format
    kind = form["type"]
    if kind not in (None, "torch", "numpy", "arrow"):
        return None, f"the dataset has the format {kind!r}"
    if kind is not None and form["output_all_columns"]:
        return None, "the format of the dataset is for some of its columns"
    wanted = _known(names or (form["columns"] if kind else source.column_names), source.column_names)
    table = source.with_format("arrow").select_columns(wanted)[:]
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name in wanted:
        array, why = _array(table.column(name))
        if array is None:
            return None, f"column {name!r} {why}"
        arrays[name] = array
    if kind not in ("torch", "numpy"):
        return Columns.of(arrays), ""
    # The formatter makes one row alone: the columns are cast to what that is.
    row = source.with_format(kind, columns=wanted, **form["format_kwargs"])[:1]
    for name, array in arrays.items():
        if not is_array(row[name]) or row[name].shape[1:] != array.shape[1:]:
            return None, f"the format {kind!r} makes something else of column {name!r}"
    return Columns.of({name: _cast(array, row[name]) for name, array in arrays.items()}), ""


def _cast(array: np.ndarray[Any, Any], like: Array) -> Array:
    return torch.from_numpy(array).to(like) if isinstance(like, Tensor) else array.astype(like.dtype)


def _known(names: Sequence[str], there: Sequence[str]) -> list[str]:
    missing = [name for name in names if name not in there]
    if missing:
        raise DataError(f"names has {missing[0]!r}, the table has the columns {list(there)}.")
    return list(names)


def _array(column: Any) -> tuple[np.ndarray[Any, Any] | None, str]:
    """Turn one column into an array with a row per sample."""
    pa: Any = import_module("pyarrow")  # only ever for a source that is made of it
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
        return None, f"holds {kind}, not numbers"
    values = np.array(column.to_numpy(zero_copy_only=False))
    return values.reshape(shape), ""
