"""Tensors and arrays that have no rows to gather: sparse, nested and quantized tensors, masked values."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from flodl.core.errors import DataError


def check_dense(column: Tensor | np.ndarray[Any, Any], label: str) -> None:
    """Raise for a tensor without dense rows, and for an array with masked values.

    >>> check_dense(torch.eye(3).to_sparse(), "column 'x'")
    Traceback (most recent call last):
    flodl.core.errors.DataError: column 'x' is a sparse tensor (torch.sparse_coo), ... Pass x.to_dense() ...
    """
    if isinstance(column, np.ndarray):
        check_not_masked(column, label)
    elif column.is_nested:
        raise DataError(
            f"{label} is a nested tensor, whose samples have different shapes; a batch is a dense tensor. "
            "Pass torch.nested.to_padded_tensor(x, padding=0.0), or a list of samples with a function that "
            "pads each batch: Loader(list(zip(x.unbind(), y)), batch_size=…, collate=pad)."
        )
    elif column.is_quantized:
        raise DataError(
            f"{label} is a quantized tensor ({column.dtype}), and batches are gathered from plain numbers. "
            "Pass x.dequantize(), or the stored integers, x.int_repr(), and apply scale and zero point in "
            "the step function."
        )
    elif column.layout != torch.strided:
        raise DataError(
            f"{label} is a sparse tensor ({column.layout}), and batches are gathered from dense rows. Pass "
            "x.to_dense() if it fits into memory, or a dataset whose __getitem__ returns x[index].to_dense()."
        )


def check_not_masked(array: np.ndarray[Any, Any], label: str) -> None:
    """Raise for an array with masked values: tensors have no mask.

    >>> check_not_masked(np.ma.masked_array([1.0, 2.0], [False, True]), "column 'x'")
    Traceback (most recent call last):
    flodl.core.errors.DataError: column 'x' is a masked array, and tensors have no mask: ...
    """
    if isinstance(array, np.ma.MaskedArray) and bool(np.ma.is_masked(array)):
        masked = int(np.ma.getmaskarray(array).sum())
        raise DataError(
            f"{label} is a masked array, and tensors have no mask: the {masked} masked "
            "values would be read as they are. Fill them, for example with x.filled(0), and pass the mask as "
            "an array of its own (~np.ma.getmaskarray(x)) if the step function needs it."
        )
