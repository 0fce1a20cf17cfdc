"""The file format of the Rust floDl (`FDLC`): a list of entries, each with name, shape, type and bytes."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from flodl.core import CheckpointError

from .byte_reader import ByteReader
from .safetensors import MAX_TENSORS, from_bytes, raw_bytes

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
_MAX_NAME_BYTES = 1 << 16
_MAX_DIMENSIONS = 64


def check_dtype(name: str, dtype: torch.dtype) -> None:
    """Raise if the format cannot store a type."""
    if dtype not in _TAGS:
        kinds = ", ".join(str(known).removeprefix("torch.") for known in _TAGS)
        raise CheckpointError(
            f"FDLC files cannot store {str(dtype).removeprefix('torch.')}, only {kinds}. "
            "Convert it, or save with format='safetensors'.",
            path=name,
        )


def serialize(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file, piece by piece.

    The hash is left unset: the Rust floDl computes its hash differently and rejects any other value.
    """
    if len(tensors) > MAX_TENSORS:
        raise CheckpointError(f"there are {len(tensors)} tensors; a file can have {MAX_TENSORS}.")
    for name in tensors:
        if len(name.encode()) > _MAX_NAME_BYTES:
            raise CheckpointError(f"a name has {len(name.encode())} bytes; the limit is {_MAX_NAME_BYTES}.")
    yield MAGIC + struct.pack("<I", _VERSION) + _UNKNOWN_HASH + struct.pack("<I", len(tensors))
    for name, tensor in tensors.items():
        encoded_name, shape = name.encode(), tensor.shape
        dimensions = struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}q", *shape)
        type_and_size = struct.pack("<BQ", _TAGS[tensor.dtype], tensor.nbytes)
        yield struct.pack("<I", len(encoded_name)) + encoded_name + dimensions + type_and_size
        yield raw_bytes(tensor)


def read(reader: ByteReader, *, only_shapes: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return all tensors and the metadata; an inconsistent file raises ValueError.

    With `only_shapes`, the tensors are on the meta device, and no value is read.
    """
    reader.read(len(MAGIC))
    version = _read_int(reader, "<I")
    if version not in (1, 2):
        raise ValueError(f"it has version {version}; only versions 1 and 2 are supported")
    rust_hash = bytes(reader.read(32))
    tensors: dict[str, Tensor] = {}
    count = _read_int(reader, "<I")
    if count > MAX_TENSORS:
        raise ValueError(f"it claims {count} tensors")
    for _ in range(count):
        name, tensor = _read_entry(reader, only_shapes)
        if name in tensors:
            raise ValueError(f"it has {name!r} twice")
        tensors[name] = tensor
    reader.check_end()
    metadata = {"flodl_layout": "fdlc"}
    # Not comparable with a structural hash of this package, so it has its own key.
    return tensors, metadata if rust_hash == _UNKNOWN_HASH else metadata | {"rust_hash": rust_hash.hex()}


def _read_entry(reader: ByteReader, only_shapes: bool) -> tuple[str, Tensor]:
    length = _read_int(reader, "<I")
    if length > _MAX_NAME_BYTES:
        raise ValueError(f"a name claims {length} bytes")
    name = str(reader.read(length), "utf-8")
    num_dimensions = _read_int(reader, "<I")
    if num_dimensions > _MAX_DIMENSIONS:
        raise ValueError(f"{name!r} claims {num_dimensions} dimensions")
    shape = struct.unpack(f"<{num_dimensions}q", reader.read(8 * num_dimensions))
    tag, size = struct.unpack("<BQ", reader.read(9))
    if tag not in _DTYPES:
        raise ValueError(f"{name!r} has the unknown type {tag}")
    dtype = _DTYPES[tag]
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"{name!r} of shape {shape} and type {dtype} cannot take {size} bytes")
    if only_shapes:
        reader.skip(size)
        return name, torch.empty(shape, dtype=dtype, device="meta")
    return name, from_bytes(reader.read(size), dtype, shape)


def _read_int(reader: ByteReader, layout: str) -> int:
    (number,) = struct.unpack(layout, reader.read(struct.calcsize(layout)))
    return int(number)
