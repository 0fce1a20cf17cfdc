"""Convert nested state to JSON and named tensors, and back exactly, without pickle.

Dicts, lists and plain values stay readable; a type that JSON lacks becomes an object with one key that starts
with `$`. Tensors are named by their path:

>>> structure, tensors = encode({"lr": 0.1, "state": {0: {"exp_avg": torch.zeros(2)}}, "betas": (0.9, 0.99)})
>>> list(tensors)
['state.0.exp_avg']
>>> structure["betas"], structure["state"]
({'$tuple': [0.9, 0.99]}, {'$dict': [[0, {'exp_avg': {'$tensor': 'state.0.exp_avg'}}]]})
>>> decode(structure, tensors)
{'lr': 0.1, 'state': {0: {'exp_avg': tensor([0., 0.])}}, 'betas': (0.9, 0.99)}
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch
from torch import Tensor

from flodl.core import CheckpointError
from flodl.core.formats import a_type

from .files.keywords import suggest_keywords

Json = Any

# Python's JSON reader refuses longer integers, and its recursion limit deeper states.
_MAX_INTEGER_BITS = 12_000
_MAX_DEPTH = 100


@suggest_keywords
def encode(state: Any) -> tuple[Json, dict[str, Tensor]]:
    """Split a state into a JSON structure and its tensors, which are not copied."""
    tensors: dict[str, Tensor] = {}
    try:
        return _Encoder(tensors).value(state, ""), tensors
    except RecursionError:
        raise CheckpointError(
            "the state is nested too deeply or contains itself. Save plain dicts, lists, numbers and tensors."
        ) from None


@suggest_keywords
def decode(structure: Json, tensors: Mapping[str, Tensor]) -> Any:
    """Rebuild a state; raise ValueError if `encode` cannot have written the structure."""
    if isinstance(structure, list):
        return [decode(item, tensors) for item in structure]
    if not isinstance(structure, dict):
        return structure
    if len(structure) == 1:
        ((key, content),) = structure.items()
        if key.startswith("$"):
            if key not in _DECODERS:
                raise ValueError(f"it has a value of the unknown type {key[1:]!r}")
            return _DECODERS[key](content, tensors)
    return {key: decode(value, tensors) for key, value in structure.items()}


class _Encoder:
    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors
        self._depth = 0

    def value(self, value: Any, path: str) -> Json:
        if value is None or type(value) in (bool, str):
            return value
        if type(value) is int:
            if value.bit_length() > _MAX_INTEGER_BITS:
                raise CheckpointError("the integer is too long to be saved. Save it as bytes.", path=path)
            return value
        if isinstance(value, Tensor):
            return {"$tensor": self._add_tensor(value.detach(), path)}
        if isinstance(value, Mapping) or type(value) in (list, tuple):
            return self._container(value, path)
        if isinstance(value, torch.Size):
            return {"$size": list(value)}
        return self._rare_value(value, path)

    def _container(self, value: Any, path: str) -> Json:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise RecursionError
        try:
            if isinstance(value, Mapping):
                return self._dict(value, path)
            items = self._items(value, path)
            return items if type(value) is list else {"$tuple": items}
        finally:
            self._depth -= 1

    def _rare_value(self, value: Any, path: str) -> Json:
        if isinstance(value, numpy.generic):
            return self.value(value.item(), path)
        if isinstance(value, float):
            return value if math.isfinite(value) else {"$float": str(value)}
        if isinstance(value, int | str):  # an IntEnum or StrEnum
            return self.value(int(value) if isinstance(value, int) else str(value), path)
        if isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc":
            return {"$array": self._add_tensor(_as_tensor(value, path), path)}
        if isinstance(value, bytes | bytearray):
            return {"$bytes": base64.b64encode(value).decode()}
        if isinstance(value, torch.dtype):
            return {"$dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"$device": str(value)}
        raise CheckpointError(
            f"{a_type(value)} cannot be saved. Save its contents as dicts, lists, tuples, "
            "numbers, strings and tensors.",
            path=path,
        )

    def _dict(self, table: Mapping[Any, Any], path: str) -> Json:
        has_str_keys = all(type(key) is str for key in table)
        if has_str_keys and not (len(table) == 1 and next(iter(table)).startswith("$")):
            return {key: self.value(value, _join(path, key)) for key, value in table.items()}
        pairs = []
        for key, value in table.items():
            if not isinstance(key, str | int | float | tuple | None):
                raise CheckpointError(
                    f"a key is {a_type(key)}. Use strings, numbers or tuples as keys.", path=path
                )
            pairs.append([self.value(key, path), self.value(value, _join(path, key))])
        return {"$dict": pairs}

    def _items(self, items: Any, path: str) -> list[Json]:
        return [self.value(item, _join(path, index)) for index, item in enumerate(items)]

    def _add_tensor(self, tensor: Tensor, path: str) -> str:
        name, count = path or "value", 1
        while name in self._tensors:  # {"a.b": …} and {"a": {"b": …}}
            count += 1
            name = f"{path}#{count}"
        self._tensors[name] = tensor
        return name


def _as_tensor(array: Any, path: str) -> Tensor:
    native = array.astype(array.dtype.newbyteorder("="))  # a copy
    try:
        return torch.from_numpy(native)
    except TypeError:
        raise CheckpointError(
            f"an array of {array.dtype} cannot be saved. Convert it, for example with astype('float64').",
            path=path,
        ) from None


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _decode_tensor(content: Json, tensors: Mapping[str, Tensor]) -> Tensor:
    if not isinstance(content, str) or content not in tensors:
        raise ValueError(f"the tensor {content!r:.80} is missing")
    return tensors[content]


def _decode_dict(content: Json, tensors: Mapping[str, Tensor]) -> dict[Any, Any]:
    return {decode(key, tensors): decode(value, tensors) for key, value in content}


def _decode_dtype(content: Json, _: Mapping[str, Tensor]) -> torch.dtype:
    dtype = getattr(torch, str(content), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"it has the unknown dtype {content!r:.80}")
    return dtype


_DECODERS: dict[str, Callable[[Json, Mapping[str, Tensor]], Any]] = {
    "$tensor": _decode_tensor,
    "$array": lambda content, tensors: _decode_tensor(content, tensors).numpy(),
    "$tuple": lambda content, tensors: tuple(decode(item, tensors) for item in content),
    "$dict": _decode_dict,
    "$float": lambda content, _: float(content),
    "$size": lambda content, _: torch.Size(content),
    "$bytes": lambda content, _: base64.b64decode(content, validate=True),
    "$dtype": _decode_dtype,
    "$device": lambda content, _: torch.device(content),
}
