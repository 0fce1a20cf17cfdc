"""Advice for a batch of NumPy arrays, which layers take for tensors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from torch import nn

from ...batch.tree import leaves_of
from .frames import arguments_of

# What torch and Python say if an array takes the place of a tensor. The second is for methods of both.
_NAMED = r"\bndarray\b"
_METHODS = r"takes (from )?\d+ (to \d+ )?positional arguments? but|got an unexpected keyword argument"


def advice_for_arrays(told: str, error: Exception, model: nn.Module, batch: tuple[Any, ...]) -> str:
    """Return the advice if an error is about an array of the batch, or "".

    >>> batch = np.zeros((8, 4)), np.zeros(8)
    >>> advice_for_arrays("'numpy.ndarray' object has no attribute 'dim'", AttributeError(), nn.ReLU(), batch)
    'Convert the batch to tensors: torch.as_tensor(x).'
    """
    arrays = _arrays(batch)
    if not any(array.dtype.kind in "biufc" for array in arrays):
        return ""
    if re.search(_NAMED, told):
        # Arrays of the model itself are not those of the batch.
        of_error = [*filter(_is_array, [getattr(error, "obj", None)])]
        is_of_batch = not of_error or any(np.may_share_memory(of_error[0], one) for one in arrays)
    else:
        passed = _arrays(arguments_of(error, model, innermost=True))
        is_of_batch = bool(re.search(_METHODS, told) and passed)
    return "Convert the batch to tensors: torch.as_tensor(x)." if is_of_batch else ""


def _arrays(values: Any) -> list[np.ndarray[Any, Any]]:
    return [leaf for leaf in leaves_of(values) if _is_array(leaf)]


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)
