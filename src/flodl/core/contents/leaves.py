"""Values that are described on their own: texts, names, tensors; and which objects have settings."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Sequence
from contextlib import suppress
from types import NoneType
from typing import Any

from ..plain import plain
from .arrays import content_hash

BASIC = (bool, int, float, str, NoneType)
_BASICS = frozenset(BASIC)
# Of what is longer, only a part is hashed.
MAX_HASHED = 1_000_000
MAX_NUMBERS = 16
_MAX_TEXT = 200
_MAX_ROWS = 1000
# Packages whose objects contain numbers and settings, not connections or clocks.
_NUMERIC = frozenset({"kornia", "numpy", "scipy", "sklearn", "torch", "torchvision"})
_NOT_SETTINGS = ("torch.optim", "torch.profiler", "torch.utils.tensorboard")
_OWN_SETTINGS = (
    "flodl.data.augment",
    "flodl.data.sampling",
    "flodl.nn",
    "flodl.optim",
    "flodl.train.callbacks",
)


def has_settings(kind: type, module: str) -> bool:
    """Return whether the attributes of an object of an installed package are settings."""
    root = module.partition(".")[0]
    if root == "flodl":
        return module.startswith(_OWN_SETTINGS)
    if root in sys.stdlib_module_names or module.startswith(_NOT_SETTINGS):
        return False
    return root in _NUMERIC or any("__call__" in one.__dict__ for one in kind.__mro__)


def array_text(value: Any) -> Any:
    """Describe a tensor or an array by its elements if they are few, else by its shape and a hash."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    is_tensor = torch is not None and isinstance(value, torch.Tensor)
    if is_tensor or (numpy is not None and isinstance(value, numpy.ndarray)):
        shape = "x".join(map(str, value.shape))
        size = value.numel() if is_tensor else value.size
        form = f"{str(value.dtype).removeprefix('torch.')} {shape}"
        if size <= MAX_NUMBERS:
            return plain(value)
        try:
            return f"{form} #{content_hash(value)}"
        except (TypeError, ValueError, RuntimeError, NotImplementedError):  # sparse, on meta, of objects
            return form
    if type(value).__module__.startswith("pandas.") and hasattr(value, "iloc"):
        rows = value.iloc[:: max(1, len(value) // _MAX_ROWS)]
        return f"{type(value).__name__} {'x'.join(map(str, value.shape))} #{text_hash(rows.to_csv())}"
    kinds = () if torch is None else (torch.dtype, torch.device)
    kinds = kinds if numpy is None else (*kinds, numpy.generic)
    return plain(value) if isinstance(value, kinds) else None


def hash_of_basic(items: Sequence[Any]) -> str | None:
    """Return a hash of all items, or None for many, or for others than numbers, strings and rows of them.

    >>> hash_of_basic([0.5] * 2000) == hash_of_basic([0.5] * 1999 + [0.25]), hash_of_basic([print])
    (False, None)
    """
    if len(items) > MAX_HASHED:
        return None
    kinds = set(map(type, items))
    if kinds <= {list, tuple}:
        if sum(map(len, items)) > MAX_HASHED or not {type(one) for row in items for one in row} <= _BASICS:
            return None
    elif not kinds <= _BASICS:
        return None
    return hashlib.sha256(_packed(items, kinds)).hexdigest()[:8]


def _packed(items: Sequence[Any], kinds: set[type]) -> bytes:
    """Return items as bytes: numbers in binary, which takes a tenth of the time of their text."""
    code = "d" if kinds == {float} else "q" if kinds == {int} else ""
    with suppress(OverflowError):  # large integers
        if code:
            return code.encode() + array(code, items).tobytes()
    return repr(items).encode("utf-8", "surrogatepass")


def qualified_name(value: Any) -> str:
    return (
        f"{getattr(value, '__module__', None) or 'builtins'}.{getattr(value, '__qualname__', name_of(value))}"
    )


def name_of(value: Any) -> str:
    return type(value).__name__


def key_text(key: Any) -> str:
    return short_text(str(key)) if type(key) in BASIC else name_of(key)


def short_text(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:80]}… #{text_hash(text)}"


def text_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
