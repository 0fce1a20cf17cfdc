"""The settings of a run as flat data that can be compared: dotted paths and plain values."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import os
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from flodl.core.plain import hide_secret

_MAX_DEPTH = 32
_MAX_TEXT = 4000
_MAX_NUMBERS = 1000
# JavaScript, and so the page, has no larger exact integers.
_MAX_EXACT = 2**53
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")


def flatten_config(config: Mapping[str, Any], origins: Mapping[str, str]) -> list[dict[str, Any]]:
    """Flatten a nested configuration into dotted paths, values and their origins.

    >>> flatten_config({"optimizer": {"lr": 0.1}}, {"optimizer.lr": "fdl.yml:12"})
    [{'path': 'optimizer.lr', 'value': 0.1, 'origin': 'fdl.yml:12'}]

    Values that differ stay different: two settings never share a path, and text that is cut ends with a hash.
    The value of a name such as `api_key` becomes a hash.
    """
    found: dict[str, Any] = {}
    for path, value in _leaves("", config, 0):
        name, count = path, 1
        while name in found:
            count += 1
            name = f"{path} ({count})"
        found[name] = value
    return [
        {"path": path, "value": value, "origin": str(origins.get(path, ""))} for path, value in found.items()
    ]


def _leaves(prefix: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    items = _items(value) if depth < _MAX_DEPTH else None
    if items:
        for name, item in items:
            path = f"{prefix}.{name}" if prefix else str(name)
            yield from _leaves(path, hide_secret(str(name), item), depth + 1)
    elif prefix:
        yield prefix, _plain(value)


def _items(value: Any) -> list[tuple[Any, Any]] | None:
    """Return the named parts of a value, or None if it is a single value."""
    if isinstance(value, Mapping):
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value))
    if isinstance(value, list | tuple) and any(_items(item) for item in value):
        return list(enumerate(value))
    return None


def _plain(value: Any) -> Any:
    """Convert a value to what JSON can represent exactly, and the same in every process.

    >>> [_plain(value) for value in (2**60, math.nan, {"b", "a"}, print, (1, None))]
    ['1152921504606846976', 'nan', ['a', 'b'], 'builtins.print', [1, None]]
    """
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) <= _MAX_EXACT else _number_text(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, str):
        return _shortened(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value] if len(value) <= _MAX_NUMBERS else _shortened(repr(value))
    if isinstance(value, set | frozenset):
        return sorted((_plain(item) for item in value), key=repr)
    if callable(getattr(value, "tolist", None)):
        return _array(value)
    return _shortened(_ADDRESS.sub("", _text(value)))


def _text(value: Any) -> str:
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, functools.partial):
        named = value.keywords.items()
        arguments = [*map(repr, value.args), *(f"{name}={hide_secret(name, item)!r}" for name, item in named)]
        return f"{_text(value.func)}({', '.join(arguments)})"
    name = getattr(value, "__qualname__", None)
    if isinstance(name, str):
        return f"{getattr(value, '__module__', None)}.{name}"
    try:
        return str(value)
    except Exception as error:  # a setting must never stop a run
        return f"<{type(value).__name__} whose text cannot be read: {type(error).__name__}>"


def _array(value: Any) -> Any:
    """Return the numbers of a small array or tensor; describe a large one by its type and a hash."""
    try:
        numbers = value.tolist()
    except Exception as error:
        return f"<{type(value).__name__} that cannot be read: {type(error).__name__}>"
    if not isinstance(numbers, list) or len(text := repr(numbers)) <= _MAX_TEXT:
        return _plain(numbers)
    kind = f"{type(value).__name__} of shape {tuple(getattr(value, 'shape', ()))}"
    return f"{kind}, sha256 {_hash(text)}"


def _number_text(value: int) -> str:
    try:
        return str(value)
    except ValueError:  # thousands of digits
        return _shortened(hex(value))


def _shortened(text: str) -> str:
    """Cut a long text; a hash of the whole text follows, because the rest may differ."""
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[:_MAX_TEXT]}… ({len(text)} characters, sha256 {_hash(text)})"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
