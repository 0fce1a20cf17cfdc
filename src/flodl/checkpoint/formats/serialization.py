"""What is in a checkpoint, whatever its layout: names, shapes and notes first, values on request."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from flodl.core import CheckpointError

from . import fdlc, torch_save
from .byte_reader import PathOrStream, Supply, Whole, named, supplied
from .checksum import Buffer, digest
from .safetensors import (
    DTYPE_NAMES,
    MOST_HEADER_BYTES,
    Entry,
    data_bytes,
    data_order,
    pack_header,
    parse_header,
    raw_bytes,
    tensors_in,
)
from .storable import make_plain, undo_plain

_FORMAT = "flodl_format"
_CHECKSUM = "flodl_checksum"
_HASHES = "structural_hash", "rust_hash"


def is_of_flodl(key: str) -> bool:
    """Say whether a note of a file is one that flodl wrote about it, rather than the user."""
    return key.startswith("flodl_") or key in _HASHES


@dataclass(frozen=True)
class Contents:
    """An open checkpoint: `shapes` holds tensors without values, `read` gives those with values."""

    shapes: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    read: Callable[[], dict[str, Tensor]]


def pack(
    named_tensors: Mapping[str, Tensor], metadata: Mapping[str, str], *, checksum: bool
) -> Iterator[Buffer]:
    """Give the bytes of a safetensors file, piece by piece."""
    tensors, notes = make_plain(named_tensors)
    notes = {**metadata, **notes}
    data = {name: raw_bytes(tensors[name]) for name in data_order(tensors)}
    if checksum:
        notes[_FORMAT] = "1"
        facts = _facts({name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()}, notes)
        notes[_CHECKSUM] = digest([facts, *data.values()])
    yield pack_header(tensors, notes)
    yield from data.values()


def pack_fdlc(named_tensors: Mapping[str, Tensor]) -> Iterator[Buffer]:
    """Give the bytes of a file of the Rust floDl, which knows no ties, piece by piece."""
    tensors = {name: make_plain({name: tensor})[0][name] for name, tensor in named_tensors.items()}
    yield from fdlc.pack(tensors)


@contextmanager
def opened(source: PathOrStream) -> Iterator[Contents]:
    """Open a checkpoint of any layout; damage becomes an error of our tree."""
    with supplied(source) as supply:
        if supply.starts_with.startswith(fdlc.MAGIC):
            tensors, metadata = fdlc.read(supply)
            yield Contents(tensors, metadata, lambda: tensors)
        elif supply.starts_with.startswith(torch_save.ZIP_MAGIC):
            tensors = torch_save.read(_for_torch(source, supply))
            yield Contents(tensors, {"flodl_layout": "torch"}, lambda: tensors)
        elif supply.starts_with.startswith(torch_save.LEGACY_MAGIC):
            raise torch_save.old_form(_for_torch(source, supply))
        else:
            yield open_safetensors(supply)


def open_safetensors(supply: Supply, *, verify: bool = True) -> Contents:
    """Read the header; the values are read, and their checksum compared, only by `read`."""
    length = int.from_bytes(supply.take(8), "little")
    if length > MOST_HEADER_BYTES:
        is_pickle = supply.starts_with.startswith(b"\x80")
        raise ValueError("it is a pickle" if is_pickle else f"its header claims {length} bytes")
    entries, metadata = parse_header(bytes(supply.take(length)))
    hollow = {
        name: torch.empty(entry.shape, dtype=entry.dtype, device="meta") for name, entry in entries.items()
    }

    def read() -> dict[str, Tensor]:
        data = supply.take(data_bytes(entries))
        supply.end()
        if verify and (_FORMAT in metadata or _CHECKSUM in metadata):
            _compare(data, entries, metadata)
        return undo_plain(dict(tensors_in(data, entries)), metadata)

    return Contents(undo_plain(hollow, metadata), metadata, read)


def _compare(data: memoryview, entries: Mapping[str, Entry], metadata: Mapping[str, str]) -> None:
    facts = _facts({name: (entry.dtype, entry.shape) for name, entry in entries.items()}, metadata)
    if digest([facts, data]) != metadata.get(_CHECKSUM):
        raise ValueError("its bytes are not those that were written: the checksum differs")


def _facts(kinds: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    notes = {key: value for key, value in metadata.items() if key != _CHECKSUM}
    table = [[name, DTYPE_NAMES[dtype], shape] for name, (dtype, shape) in kinds.items()]
    return json.dumps([table, sorted(notes.items())]).encode()


def _for_torch(source: PathOrStream, supply: Supply) -> str | os.PathLike[str] | io.BytesIO:
    if not isinstance(supply, Whole):
        raise CheckpointError(f"{named(source)} is a compressed file of torch.save. Unpack it first.")
    return source if isinstance(source, str | os.PathLike) else io.BytesIO(supply.view)
