"""A batch in words, for errors: dtypes and shapes, without values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from flodl.core.formats import a_type

_MOST_ITEMS = 8
# Items that are worth a description; a list of numbers, or of lists of them, is described by its length.
_TEXTS = (Tensor, np.ndarray, Mapping)


def batch_text(batch: tuple[Any, ...]) -> str:
    """Return the dtypes and shapes of a batch.

    >>> import torch
    >>> batch_text((torch.zeros(8, 4), [torch.zeros(8).long(), "word"], {"mask": None}))
    "(float32 [8, 4], [int64 [8], str], {'mask': None})"
    """
    return f"({_joined(map(_value_text, batch))})"


def keys_text(mapping: Mapping[Any, Any]) -> str:
    """Return the keys of a part of a batch.

    >>> keys_text({"x": 1, "y": 2})
    "'x', 'y'"
    """
    return _joined(map(repr, mapping)) or "no keys"


def _value_text(value: Any) -> str:
    if isinstance(value, Tensor):
        device = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"{str(value.dtype).removeprefix('torch.')} {[*value.shape]}{device}"
    if isinstance(value, np.ndarray):
        return f"numpy {value.dtype} {[*value.shape]}"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + _joined(f"{key!r}: {_value_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple) and not any(isinstance(item, _TEXTS) for item in value):
        return f"{a_type(value)} of {len(value)}"
    if isinstance(value, list | tuple):
        open_, close = "[]" if isinstance(value, list) else "()"
        return open_ + _joined(map(_value_text, value)) + close
    return type(value).__name__


def _joined(texts: Iterable[str]) -> str:
    known = [*texts]
    more = [f"… {len(known) - _MOST_ITEMS} more"] if len(known) > _MOST_ITEMS else []
    return ", ".join(known[:_MOST_ITEMS] + more)
