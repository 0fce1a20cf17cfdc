"""Tensors to and from the bytes of a checkpoint file of any format."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from flodl.core import CheckpointError, DamagedError

from . import fdlc, torch_save
from .byte_reader import ZIP_MAGIC, ByteReader, MemoryReader, PathOrStream, display_name, open_reader
from .checksum import Buffer, digest
from .foreign import describe_foreign
from .safetensors import (
    DTYPE_NAMES,
    MAX_HEADER_BYTES,
    Entry,
    data_order,
    num_data_bytes,
    pack_header,
    parse_header,
    parse_tensors,
    raw_bytes,
)
from .storable import check_storable, from_storable, to_storable

_FORMAT = "flodl_format"
_CHECKSUM = "flodl_checksum"
_HASHES = "structural_hash", "rust_hash"
# The other names that flodl writes. Files without a checksum, those of a bundle for example, may have them.
_WITHOUT_CHECKSUM = {
    "flodl_aliases", "flodl_dtypes", "flodl_state", "flodl_python", "flodl_structure", "flodl_places",
    "flodl_labels",
}  # fmt: skip


def is_flodl_key(key: str) -> bool:
    """Return whether flodl, rather than the user, wrote a metadata key."""
    return key.startswith("flodl_") or key in _HASHES


@dataclass(frozen=True)
class Contents:
    """An open checkpoint: `shapes` are tensors on the meta device, `read` returns the tensors with values."""

    shapes: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    read: Callable[[], dict[str, Tensor]]

    @property
    def has_checksum(self) -> bool:
        """Whether the file contains a checksum, which `read` compares."""
        return _FORMAT in self.metadata or _CHECKSUM in self.metadata


def serialize_safetensors(
    named_tensors: Mapping[str, Tensor], metadata: Mapping[str, str], *, checksum: bool
) -> Iterator[Buffer]:
    """Yield the bytes of a safetensors file, piece by piece."""
    storable = to_storable(named_tensors)
    tensors, itemsizes = storable.tensors, storable.itemsizes
    all_metadata = {**metadata, **storable.metadata}
    order = data_order(tensors, itemsizes)
    data = {name: raw_bytes(tensors[name]) for name in order}
    if checksum:
        all_metadata[_FORMAT] = "1"
        types_and_shapes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
        summary = _header_summary(types_and_shapes, all_metadata)
        all_metadata[_CHECKSUM] = digest([summary, *data.values()])
    yield pack_header(tensors, all_metadata, order, alignment=max([8, *itemsizes.values()]))
    yield from data.values()


def serialize_fdlc(named_tensors: Mapping[str, Tensor]) -> Iterator[Buffer]:
    """Yield the bytes of a file of the Rust floDl, piece by piece; the format has no tied tensors."""
    for name, tensor in named_tensors.items():
        check_storable(name, tensor)
        fdlc.check_dtype(name, tensor.dtype)
    yield from fdlc.serialize(
        {name: to_storable({name: tensor}).tensors[name] for name, tensor in named_tensors.items()}
    )


@contextmanager
def open_checkpoint(source: PathOrStream, *, only_shapes: bool = False) -> Iterator[Contents]:
    """Open a checkpoint of any format; damage raises DamagedError. With `only_shapes`, do not call `read`."""
    with open_reader(source) as reader:
        if reader.first_bytes.startswith(fdlc.MAGIC):
            tensors, metadata = fdlc.read(reader, only_shapes=only_shapes)
            yield Contents(tensors, metadata, lambda: tensors)
        elif reader.first_bytes.startswith(ZIP_MAGIC):
            tensors = torch_save.read(_torch_source(source, reader))
            yield Contents(tensors, {"flodl_layout": "torch"}, lambda: tensors)
        elif reader.first_bytes.startswith(torch_save.LEGACY_MAGIC):
            raise torch_save.legacy_error(display_name(source))
        elif kind := describe_foreign(
            reader.first_bytes, is_stream=not isinstance(source, str | os.PathLike)
        ):
            raise DamagedError(
                f"{display_name(source)} {kind}", advice="Pass a file that save_checkpoint wrote."
            )
        else:
            yield open_safetensors(reader)


def open_safetensors(reader: ByteReader, *, verify: bool = True) -> Contents:
    """Parse the header; only `read` reads the values and compares the checksum."""
    length = int.from_bytes(reader.read(8), "little")
    if length > MAX_HEADER_BYTES:
        is_pickle = reader.first_bytes.startswith(b"\x80")
        raise ValueError("it is a pickle" if is_pickle else f"its header claims {length} bytes")
    entries, metadata = parse_header(bytes(reader.read_header(length)))
    shapes = {
        name: torch.empty(entry.shape, dtype=entry.dtype, device="meta") for name, entry in entries.items()
    }

    def read() -> dict[str, Tensor]:
        data = reader.read(num_data_bytes(entries))
        reader.check_end()
        if verify and any(key.startswith("flodl_") for key in metadata.keys() - _WITHOUT_CHECKSUM):
            # Any other name is that of the format or the checksum, perhaps damaged.
            _check_checksum(data, entries, metadata)
        return from_storable(dict(parse_tensors(data, entries)), metadata)

    return Contents(from_storable(shapes, metadata), metadata, read)


def _check_checksum(data: memoryview, entries: Mapping[str, Entry], metadata: Mapping[str, str]) -> None:
    summary = _header_summary({name: (entry.dtype, entry.shape) for name, entry in entries.items()}, metadata)
    if digest([summary, data]) != metadata.get(_CHECKSUM):
        raise ValueError("its checksum differs from the one that was written")


def _header_summary(
    types_and_shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], metadata: Mapping[str, str]
) -> bytes:
    """Return the part of the header that the checksum covers."""
    covered = {key: value for key, value in metadata.items() if key != _CHECKSUM}
    table = [[name, DTYPE_NAMES[dtype], shape] for name, (dtype, shape) in types_and_shapes.items()]
    return json.dumps([table, sorted(covered.items())]).encode()


def _torch_source(source: PathOrStream, reader: ByteReader) -> str | os.PathLike[str] | memoryview:
    if not isinstance(reader, MemoryReader):
        raise CheckpointError(
            f"{display_name(source)} is a compressed file of torch.save. Decompress it first."
        )
    return source if isinstance(source, str | os.PathLike) else reader.view
