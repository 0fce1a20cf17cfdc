"""Values that are described on their own: texts, names, tensors; and which objects have settings."""

from __future__ import annotations

import hashlib
import sys
from types import NoneType
from typing import Any

from ..plain import plain
from .arrays import content_hash

BASIC = (bool, int, float, str, NoneType)
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


def qualified_name(value: Any) -> str:
    return (
        f"{getattr(value, '__module__', None) or 'builtins'}.{getattr(value, '__qualname__', name_of(value))}"
    )


def name_of(value: Any) -> str:
    return type(value).__name__


def key_text(key: Any) -> str:
    return str(key) if type(key) in BASIC else name_of(key)


def short_text(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:80]}… #{text_hash(text)}"


def text_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
