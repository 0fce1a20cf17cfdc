"""Named tensors in one file, written whole or not at all, loaded all or none."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, cast

import torch
from torch import Tensor

from flodl.core import CheckpointError, WriteError
from flodl.core.files import expand_user, replace_atomic
from flodl.core.paths import suggestion

from ..durable_files import DiskFile
from ..formats.byte_reader import PathOrStream, named
from ..formats.checksum import Buffer
from ..formats.compression import OTHER_PACKINGS, name_within, packed, packing_of
from ..formats.serialization import opened, pack, pack_fdlc
from .matching import check_ties, check_values_fit, fit
from .report import LoadReport

Format = Literal["safetensors", "fdlc"]
FORMATS: tuple[Format, ...] = ("safetensors", "fdlc")
_TORCH_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin")


def save_checkpoint(
    target: PathOrStream,
    named_tensors: Mapping[str, Tensor],
    *,
    metadata: Mapping[str, str] | None = None,
    format: Format = "safetensors",
) -> None:
    """Write named tensors to a path or a binary stream.

    Tensors that share their storage (tied weights) are written once and restored together. A path that ends
    in `.gz` or `.zst` is compressed. `format="fdlc"` writes the layout of the Rust floDl. A name for files of
    `torch.save`, such as `.pt`, is refused.
    """
    target = checked_place(target, "write")
    check_name(target)
    check_tensors(named_tensors)
    if format not in FORMATS:
        hint = suggestion(str(format), FORMATS, known_as="formats")
        raise CheckpointError(f"format={format!r} is not known. {hint}")
    if format == "fdlc" and metadata:
        raise CheckpointError("FDLC files have no place for metadata. Leave it out, or use safetensors.")
    notes = {str(key): str(value) for key, value in (metadata or {}).items()}
    pieces = pack_fdlc(named_tensors) if format == "fdlc" else pack(named_tensors, notes, checksum=True)
    try:
        if isinstance(target, str | os.PathLike):
            with replace_atomic(target) as temporary, DiskFile(temporary) as file:
                _write(cast(BinaryIO, file), os.fspath(target), pieces)
        else:
            _write(target, "", pieces)
    except OSError as error:
        raise WriteError(
            f"cannot write {named(target)}: {error.strerror or error}. What was there before is untouched; "
            "make room or choose a folder that can be written."
        ) from error


def load_checkpoint(
    source: PathOrStream,
    named_tensors: Mapping[str, Tensor],
    *,
    prefix: str = "",
    allow_missing: Sequence[str] = (),
    allow_unexpected: Sequence[str] = (),
    structural_hash: str | None = None,
    fdlc_names: Mapping[str, str] | None = None,
) -> LoadReport:
    """Fill named tensors, in place, from a path or a binary stream; all of them or none.

    Names must agree except where a pattern in `allow_missing` (only in the model) or `allow_unexpected`
    (only in the file) says otherwise. With `prefix`, only the names under it count, without it. Values are
    cast to the dtype of the model, which must be able to hold them. `fdlc_names` says what the tensors are
    called in a file of the Rust floDl.
    """
    source = checked_place(source, "read")
    check_tensors(named_tensors)
    if not isinstance(prefix, str):
        raise CheckpointError(f"prefix={prefix!r}. Give a part of the names as text, such as 'encoder'.")
    check_patterns(allow_missing=allow_missing, allow_unexpected=allow_unexpected)
    with opened(source) as contents:
        is_fdlc = contents.metadata.get("flodl_layout") == "fdlc"
        found = fit(
            contents.shapes,
            named_tensors,
            where=named(source),
            prefix=prefix,
            other_names=fdlc_names if is_fdlc else None,
            allow_missing=allow_missing,
            allow_unexpected=allow_unexpected,
        )
        stored = contents.read()
        check_values_fit(found.sources, stored, named_tensors, named(source))
        check_ties(found.sources, stored, named_tensors, named(source))
    with torch.no_grad():
        for name, kept in found.sources.items():
            named_tensors[name].copy_(stored[kept])
    written_by = contents.metadata.get("structural_hash")
    known = written_by is not None and structural_hash is not None and not prefix
    return LoadReport(
        loaded=tuple(found.sources),
        skipped=found.skipped,
        missing=found.missing,
        same_function=written_by == structural_hash if known else None,
        retyped=tuple(n for n, kept in found.sources.items() if stored[kept].dtype != named_tensors[n].dtype),
    )


def read_checkpoint(source: PathOrStream) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read every tensor and the metadata of a checkpoint.

    Tensors from a path are mapped, not copied: a change to one never reaches the file.
    """
    source = checked_place(source, "read")
    with opened(source) as contents:
        return contents.read(), dict(contents.metadata)


def checkpoint_keys(source: PathOrStream) -> list[str]:
    """List the names in a checkpoint, in its order, without reading the values."""
    source = checked_place(source, "read")
    with opened(source) as contents:
        return list(contents.shapes)


def _write(stream: BinaryIO, name: str, pieces: Iterable[Buffer]) -> None:
    with packed(stream, packing_of(name)) as sink:
        for piece in pieces:
            sink.write(piece)


def checked_place(place: PathOrStream, method: str) -> PathOrStream:
    """Give the place, `~` in it expanded; refuse what is neither a path nor a stream of bytes."""
    if isinstance(place, io.TextIOBase):
        raise CheckpointError("the stream is one of text. Open it in binary mode: open(path, 'rb') or 'wb'.")
    if isinstance(place, str | os.PathLike):
        return expand_user(place)
    if not callable(getattr(place, method, None)):
        raise CheckpointError(
            f"the place of the checkpoint is a {type(place).__name__}. Give a path or a binary stream first, "
            "then the tensors: save_checkpoint('model.fdl', model.state_dict())."
        )
    return place


def check_name(place: PathOrStream) -> None:
    """Refuse a path that promises a file of `torch.save`, or a compression, which this is not."""
    if not isinstance(place, str | os.PathLike):
        return
    path = Path(name_within(os.fspath(place)))
    if path.suffix.lower() in OTHER_PACKINGS:
        raise CheckpointError(
            f"{named(place)} is named as a file of another compression than flodl writes. "
            f"Write '{path.stem}.gz', '{path.stem}.zst' or '{path.stem}', and compress it afterwards."
        )
    if path.suffix.lower() in _TORCH_SUFFIXES:
        raise CheckpointError(
            f"{named(place)} is named as a file of torch.save, and this one holds safetensors. Write "
            f"'{path.stem}.fdl' or '{path.stem}.safetensors', or torch.save(tensors, {path.name!r})."
        )


def check_tensors(named_tensors: object) -> None:
    """Refuse what is not a table of tensors."""
    if not isinstance(named_tensors, Mapping):
        raise CheckpointError(
            f"the tensors are a {type(named_tensors).__name__}. Give a dict of tensors by name, such as "
            "model.state_dict()."
        )
    for name in named_tensors:
        if not isinstance(name, str):
            raise CheckpointError(f"the tensor {name!r} has no name. Give names as text, such as '{name}'.")


def check_patterns(**given: object) -> None:
    """Refuse what is neither a name or pattern nor a list of them."""
    for option, patterns in given.items():
        many = [patterns] if isinstance(patterns, str) else patterns
        if not isinstance(many, Collection) or not all(isinstance(pattern, str) for pattern in many):
            raise CheckpointError(
                f"{option}={patterns!r}. Give a list of names or patterns, such as ['head.*'], or ['*'] for "
                "all."
            )
