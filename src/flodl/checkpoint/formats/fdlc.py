"""The layout of the Rust floDl (`FDLC`): entries in a row, each with its name, shape, type and bytes."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from flodl.core import CheckpointError

from .byte_reader import Supply
from .safetensors import from_bytes, raw_bytes

MAGIC = b"FDLC"
_VERSION = 2
_UNKNOWN_HASH = bytes(32)
_DTYPES = {
    1: torch.float16,
    2: torch.bfloat16,
    3: torch.float32,
    4: torch.float64,
    5: torch.int32,
    6: torch.int64,
}
_TAGS = {dtype: tag for tag, dtype in _DTYPES.items()}
_MOST_NAME_BYTES = 1 << 16
_MOST_DIMENSIONS = 64


def pack(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Give the bytes of a file, piece by piece.

    The hash is left unknown: the Rust floDl hashes another way and refuses what differs from its own.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in _TAGS:
            kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in _TAGS)
            raise CheckpointError(
                f"FDLC files cannot hold {str(tensor.dtype).removeprefix('torch.')}, only {kinds}. "
                "Convert it, or save with format='safetensors'.",
                path=name,
            )
    yield MAGIC + struct.pack("<I", _VERSION) + _UNKNOWN_HASH + struct.pack("<I", len(tensors))
    for name, tensor in tensors.items():
        text, shape = name.encode(), tensor.shape
        facts = struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}q", *shape)
        kind = struct.pack("<BQ", _TAGS[tensor.dtype], tensor.nbytes)
        yield struct.pack("<I", len(text)) + text + facts + kind
        yield raw_bytes(tensor)


def read(supply: Supply) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read every tensor; whatever contradicts itself raises ValueError."""
    supply.take(len(MAGIC))
    version = _number(supply, "<I")
    if version not in (1, 2):
        raise ValueError(f"it is of version {version}; versions 1 and 2 are known")
    written_by = bytes(supply.take(32))
    tensors: dict[str, Tensor] = {}
    for _ in range(_number(supply, "<I")):
        name, tensor = _entry(supply)
        if name in tensors:
            raise ValueError(f"it has {name!r} twice")
        tensors[name] = tensor
    supply.end()
    notes = {"flodl_layout": "fdlc"}
    # It is not a hash of ours, so it can never be compared with one.
    return tensors, notes if written_by == _UNKNOWN_HASH else notes | {"rust_hash": written_by.hex()}


def _entry(supply: Supply) -> tuple[str, Tensor]:
    length = _number(supply, "<I")
    if length > _MOST_NAME_BYTES:
        raise ValueError(f"a name claims {length} bytes")
    name = str(supply.take(length), "utf-8")
    num_dimensions = _number(supply, "<I")
    if num_dimensions > _MOST_DIMENSIONS:
        raise ValueError(f"{name!r} claims {num_dimensions} dimensions")
    shape = struct.unpack(f"<{num_dimensions}q", supply.take(8 * num_dimensions))
    tag, size = struct.unpack("<BQ", supply.take(9))
    if tag not in _DTYPES:
        raise ValueError(f"{name!r} has the unknown type {tag}")
    dtype = _DTYPES[tag]
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"{name!r} of shape {shape} and type {dtype} cannot take {size} bytes")
    return name, from_bytes(supply.take(size), dtype, shape)


def _number(supply: Supply, form: str) -> int:
    (number,) = struct.unpack(form, supply.take(struct.calcsize(form)))
    return int(number)
