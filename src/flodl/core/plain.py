"""Describe any value as plain data for the record of a run: readable, JSON-serializable, the same each time.

>>> plain({"lr": 0.1, "path": PurePath("runs"), "betas": (0.9, float("inf"))})
{'lr': 0.1, 'path': 'runs', 'betas': [0.9, 'inf']}
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
import sys
from argparse import Namespace
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import partial
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, SimpleNamespace
from typing import Any, cast

from .function_text import function_text

MAX_ITEMS = 64
_MAX_DEPTH = 6
_MAX_HASHED_BYTES = 1 << 20
_MAX_HASHED_ITEMS = 10_000
_SECRET = re.compile(r"(^|[._-])(password|passwd|secret|token|api[_-]?key|credentials?)$", re.IGNORECASE)
_HIDDEN = re.compile(r"hidden \([0-9a-f]{12}\)\Z")


def plain(value: Any, *, depth: int = _MAX_DEPTH) -> Any:
    """Return a value as None, booleans, numbers, strings, lists and dictionaries with string keys.

    An object becomes its class and its public settings, a function its name and a hash of its code, a large
    array its shape and a hash. Addresses are removed. The value of a name such as `api_key` becomes a hash.
    """
    if value is None or (isinstance(value, bool | str | int) and not isinstance(value, Enum)):
        return value if type(value) in (bool, str, int, type(None)) else _basic(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, PurePath | complex):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return f"{len(value)} bytes {short_hash(bytes(value))}"
    if (array := _array(value)) is not None:
        return array
    if depth <= 0:
        return type(value).__name__
    fields = settings_of(value)
    if fields is not None:
        if len(fields) > _MAX_HASHED_ITEMS:
            return f"{len(fields)} items"
        return {str(name): _unless_secret(str(name), item, depth) for name, item in fields.items()}
    if isinstance(value, list | tuple):
        return _items(list(value), depth)
    if isinstance(value, AbstractSet):
        return _items(sorted(value, key=repr), depth)
    return describe(value, depth=depth)


def settings_of(value: Any) -> Mapping[Any, Any] | None:
    """Return the named settings of a mapping, a namespace, a dataclass or a similar object, else None.

    >>> settings_of(Namespace(lr=0.1))
    {'lr': 0.1}
    """
    if isinstance(value, Mapping):
        return value
    if isinstance(value, Namespace | SimpleNamespace):
        return vars(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict())
    for dump in ("model_dump", "to_dict"):  # pydantic; ConfigDict and similar
        method = getattr(value, dump, None)
        if not isinstance(value, type) and callable(method) and hasattr(type(value), dump):
            try:
                found = method()
            except Exception:
                return None
            return found if isinstance(found, Mapping) else None
    return None


def describe(value: Any, *, depth: int = 2) -> str:
    """Return one line about a function, a class or an object: its name and its settings.

    An object whose class has no `__repr__` of its own is described by its public attributes.

    >>> class Every:
    ...     def __init__(self, steps):
    ...         self.steps, self._count = steps, 0
    >>> describe(Every(5)), describe(partial(max, 3))
    ('Every(steps=5)', 'partial(max, 3)')
    """
    try:
        return _description(value, depth)
    except Exception:  # from a property or a `__repr__` of the user; the record of a run must not fail
        return type(value).__name__


def _description(value: Any, depth: int) -> str:
    if isinstance(value, partial):
        arguments = [describe(value.func, depth=depth), *(_shown(one, depth) for one in value.args)]
        arguments += [f"{name}={_shown(one, depth)}" for name, one in value.keywords.items()]
        return f"partial({', '.join(arguments)})"
    if isinstance(value, MethodType):
        owner, function = describe(value.__self__, depth=depth - 1), cast(FunctionType, value.__func__)
        return f"{owner}.{function_text(function, _shown)}"
    if isinstance(value, FunctionType):
        return function_text(value, _shown)
    if isinstance(value, type | BuiltinFunctionType):
        return getattr(value, "__qualname__", repr(value))
    if getattr(type(value), "__repr__", None) is not object.__repr__:
        return _one_line(without_addresses(repr(value)))
    name = type(value).__name__
    if depth <= 0 or not hasattr(value, "__dict__"):
        return name
    shown = [
        f"{key}={_shown(item, depth - 1)}" for key, item in vars(value).items() if _is_setting(key, item)
    ]
    return f"{name}({', '.join(shown)})" if shown else name


def without_addresses(text: str) -> str:
    """Remove memory addresses, which differ in every process.

    >>> without_addresses("<function rate at 0x7f21491dd940>")
    '<function rate>'
    """
    return re.sub(r" at 0x[0-9A-Fa-f]+", "", text)


def short_hash(content: bytes) -> str:
    """Return the first twelve digits of the SHA-256 hash.

    >>> short_hash(b"")
    'e3b0c44298fc'
    """
    return hashlib.sha256(content).hexdigest()[:12]


def hide_secret(name: str, value: Any) -> Any:
    """Return a value, or a hash of it if its name says that it is secret.

    >>> hide_secret("lr", 0.1), hide_secret("api-key", "abc"), hide_secret("max_tokens", 5)
    (0.1, 'hidden (ba7816bf8f01)', 5)

    A value that is hidden already stays as it is.
    """
    if not isinstance(value, str | bytes) or not value or not _SECRET.search(name):
        return value
    if isinstance(value, bytes):
        return f"hidden ({short_hash(value)})"
    is_hidden = _HIDDEN.match(value)
    return value if is_hidden else f"hidden ({short_hash(value.encode(errors='surrogatepass'))})"


def _unless_secret(name: str, value: Any, depth: int) -> Any:
    return plain(hide_secret(name, value), depth=depth - 1)


def _basic(value: Any) -> Any:
    """Return a value of a subclass of a basic type as that type, such as a NumPy number."""
    for kind in (bool, int, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def _items(values: list[Any], depth: int) -> list[Any]:
    shown = [plain(item, depth=depth - 1) for item in values[:MAX_ITEMS]]
    rest = values[MAX_ITEMS:_MAX_HASHED_ITEMS]
    if rest:
        is_simple = all(type(item) in (bool, int, float, str) for item in rest)
        known = f" ({short_hash(repr(rest).encode())})" if is_simple else ""
        shown.append(f"and {len(values) - MAX_ITEMS} more{known}")
    return shown


def _array(value: Any) -> Any:
    """Describe a tensor or an array: its elements if they are few, else its shape and a hash; else None."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.dtype | torch.device):
        return str(value).removeprefix("torch.")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_meta or value.is_quantized:
            return f"{type(value).__name__}{tuple(value.shape)}"
        value = value.detach().cpu().float() if value.dtype == torch.bfloat16 else value.detach().cpu()
        value = value.resolve_conj().resolve_neg()
        try:
            value = value.numpy()
        except (TypeError, RuntimeError):  # NumPy lacks this dtype, or is not installed
            return f"{str(value.dtype).removeprefix('torch.')} {'x'.join(map(str, value.shape))}"
    if numpy is None or not isinstance(value, numpy.ndarray | numpy.generic):
        return None
    if value.dtype.kind not in "biuf":
        return without_addresses(str(value)) if value.size == 1 else f"{value.dtype} {value.shape}"
    if value.size <= MAX_ITEMS:
        return plain(_shortest(value))
    shape = "x".join(map(str, value.shape))
    known = f" {short_hash(value.tobytes())}" if value.nbytes <= _MAX_HASHED_BYTES else ""
    return f"{value.dtype} {shape}{known}"


def _shortest(value: Any) -> Any:
    """Return the numbers of an array; float32 numbers as they are written, 0.001 and not 0.0010000000475."""
    if value.dtype.kind == "f" and value.dtype.itemsize < 8:
        numbers = [float(str(number)) for number in value.reshape(-1)]
        return numbers[0] if value.ndim == 0 else numbers
    return value.tolist()


def _shown(value: Any, depth: int = 2) -> str:
    found = plain(value, depth=depth)
    is_text = isinstance(found, str) and not isinstance(value, str | PurePath)
    return found if is_text else repr(found)


def _is_setting(name: str, value: Any) -> bool:
    return not name.startswith("_") and not callable(value)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 500 else f"{line[:460]}… ({short_hash(line.encode())})"
