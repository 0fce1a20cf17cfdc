"""Save named tensors to one file, atomically, and load them: all or none."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from flodl.core import CheckpointError, WriteError
from flodl.core.files import expand_user, replace_atomic
from flodl.core.formats import a_type
from flodl.core.output_files import check_path, explain_write, shown
from flodl.core.paths import suggestion

from ..bundles.bundle import as_texts, verify_part_file
from ..durable_files import DiskFile
from ..forked import safe_after_fork
from ..formats.byte_reader import PathOrStream, display_name
from ..formats.checksum import Buffer
from ..formats.compression import compress, compression_of
from ..formats.rust_names import RustNode
from ..formats.serialization import Contents, open_checkpoint, serialize_fdlc, serialize_safetensors
from ..label_names import check_labels, labels_in, labels_metadata, stored_labels
from .keywords import suggest_keywords
from .locations import check_file, check_suffix
from .matching import Match, as_list, match_names, warn_of_unused
from .report import LoadReport
from .rust_files import rust_contents, uncounted
from .structure import Structure, moved_text
from .values import check_copies, check_ties, check_values_fit, warn_of_underflow

Format = Literal["safetensors", "fdlc"]
FORMATS: tuple[Format, ...] = ("safetensors", "fdlc")


@suggest_keywords
def save_checkpoint(
    target: PathOrStream,
    named_tensors: Mapping[str, Tensor],
    *,
    metadata: Mapping[str, str] | None = None,
    format: Format = "safetensors",
) -> None:
    """Write named tensors to a path or a binary stream.

    Tensors that share their storage (tied weights) are written once and stay tied when loaded. A path that
    ends in `.gz` or `.zst` is compressed. `format="fdlc"` writes the format of the Rust floDl. Suffixes of
    `torch.save` files, such as `.pt`, raise an error.
    """
    target = resolve_location(target, "write")
    check_suffix(target)
    check_tensor_dict(named_tensors)
    if format not in FORMATS:
        hint = suggestion(str(format), FORMATS, known_as="formats")
        raise CheckpointError(f"format={format!r} is not known. {hint}")
    if format == "fdlc" and metadata:
        raise CheckpointError("FDLC files cannot store metadata. Omit it, or use format='safetensors'.")
    if format == "fdlc":
        pieces = serialize_fdlc(named_tensors)
    else:
        texts = {**labels_metadata(named_tensors), **as_texts(metadata)}
        pieces = serialize_safetensors(named_tensors, texts, checksum=True)
    try:
        if isinstance(target, str | os.PathLike):
            with replace_atomic(target) as temporary, DiskFile(temporary) as file:
                _write(cast(BinaryIO, file), os.fspath(target), pieces)
        else:
            _write(target, "", pieces)
    except OSError as error:
        path = Path(target) if isinstance(target, str | os.PathLike) else None
        reason = explain_write(error, path, example="model.fdl", unchanged="An existing file is unchanged.")
        raise WriteError(f"cannot write {shown(path) if path else display_name(target)}: {reason}") from error


@suggest_keywords
def load_checkpoint(
    source: PathOrStream,
    named_tensors: Mapping[str, Tensor],
    *,
    prefix: str = "",
    allow_missing: Sequence[str] = (),
    allow_unexpected: Sequence[str] = (),
    structural_hash: str | Structure | None = None,
    allow_different_structure: bool = True,
    fdlc_names: Mapping[str, str] | None = None,
    fdlc_nodes: Sequence[RustNode] = (),
) -> LoadReport:
    """Load tensors in place from a path or a binary stream: all of them or none.

    Names must match except those that a pattern in `allow_missing` (only in the model) or `allow_unexpected`
    (only in the file) permits. With `prefix`, only the names under it are used, without the prefix. Values
    are cast to the dtype of the model, which must be able to represent them. With
    `allow_different_structure=False`, the file must come from a graph with the same `structural_hash`.
    `fdlc_names` maps each name to its name in a file that `format="fdlc"` wrote, and `fdlc_nodes` describes
    the model as the Rust floDl arranges it.
    """
    source = resolve_location(source, "read")
    check_tensor_dict(named_tensors)
    if not isinstance(prefix, str):
        raise CheckpointError(f"prefix={prefix!r}. Pass the beginning of the names, such as 'encoder'.")
    _check_patterns(allow_missing=allow_missing, allow_unexpected=allow_unexpected)
    with safe_after_fork(), _open_verified(source) as contents:
        structure = _structure(structural_hash)
        written = {} if prefix else contents.metadata
        same_function = None if structure is None else structure.is_same_as(written)
        if not allow_different_structure and not same_function:
            raise _different(structure, written, display_name(source))
        is_fdlc = contents.metadata.get("flodl_layout") == "fdlc"
        if is_fdlc and fdlc_nodes and not prefix:
            partial = bool(allow_missing or allow_unexpected)
            contents = rust_contents(
                contents, named_tensors, fdlc_names or {}, fdlc_nodes, source, is_partial=partial
            )
            allow_missing = [*as_list(allow_missing), *uncounted(contents.shapes, named_tensors)]
        match = match_names(
            contents.shapes,
            named_tensors,
            where=display_name(source),
            prefix=prefix,
            other_names=fdlc_names if is_fdlc else None,
            allow_missing=allow_missing,
            allow_unexpected=allow_unexpected,
            verify=contents.read if contents.has_checksum else None,
        )
        stored = contents.read()
        saved_labels = stored_labels(source, contents.metadata)
        check_labels(labels_in(named_tensors), saved_labels, match.sources, display_name(source))
        check_copies(match.sources, stored, named_tensors, display_name(source))
        check_values_fit(match.sources, stored, named_tensors, display_name(source))
        check_ties(match.sources, stored, named_tensors, display_name(source))
        warn_of_underflow(match.sources, stored, named_tensors, display_name(source))
    _warn_of_unused(match, named_tensors, allow_missing, allow_unexpected, display_name(source))
    with torch.no_grad(), safe_after_fork():
        for name, stored_name in match.sources.items():
            named_tensors[name].copy_(stored[stored_name])
    return LoadReport(
        loaded=tuple(match.sources),
        skipped=match.skipped,
        missing=match.missing,
        same_function=same_function,
        retyped=tuple(
            name for name, old in match.sources.items() if stored[old].dtype != named_tensors[name].dtype
        ),
    )


@suggest_keywords
def read_checkpoint(source: PathOrStream) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return all tensors and the metadata of a checkpoint.

    Tensors from a path are memory-mapped copy-on-write: changing one does not change the file.
    """
    source = resolve_location(source, "read")
    with safe_after_fork(), _open_verified(source) as contents:
        return contents.read(), dict(contents.metadata)


@suggest_keywords
def checkpoint_keys(source: PathOrStream) -> list[str]:
    """Return the names in a checkpoint, in file order, without reading the values."""
    source = resolve_location(source, "read")
    with open_checkpoint(source, only_shapes=True) as contents:
        return list(contents.shapes)


def checkpoint_labels(source: PathOrStream) -> list[str] | None:
    """Return the names of the classes that the model in a checkpoint predicts; None if they are unknown.

    Models of `flodl.hf` have them. A checkpoint with several such models has no single answer.
    """
    source = resolve_location(source, "read")
    with open_checkpoint(source, only_shapes=True) as contents:
        found = [*stored_labels(source, contents.metadata).values()]
    return found[0] if len(found) == 1 else None


@contextmanager
def _open_verified(source: PathOrStream) -> Iterator[Contents]:
    """Open a checkpoint; if it is a file of a bundle, compare it with the manifest first."""
    with open_checkpoint(source) as contents:
        if isinstance(source, str | os.PathLike) and not contents.has_checksum:
            verify_part_file(source, contents.metadata)
        yield contents


def _structure(given: str | Structure | None) -> Structure | None:
    return Structure(given, without_code=given, earlier=given) if isinstance(given, str) else given


def _different(own: Structure | None, written: Mapping[str, str], where: str) -> CheckpointError:
    stored = written.get("structural_hash")
    if own is None:
        what = "there is no structural_hash to compare the file with. Pass that of the graph."
    elif stored is None:
        what = f"{where} has no structural hash for these names, so the graph that wrote it is unknown."
    elif moved := own.moved_names(written):
        what = f"{where} was written by a graph with the same structure, but {moved_text(moved)}."
    else:
        what = f"{where} was written by a graph with a different structure (hash {stored}, here "
        what += f"{own.hash}). The code of its functions and of your module classes counts."
    return CheckpointError(
        f"{what} Nothing was loaded. Build the graph that was saved, or pass allow_different_structure=True: "
        "the same weights may then compute a different function."
    )


def _warn_of_unused(
    match: Match,
    wanted: Mapping[str, Tensor],
    allow_missing: Sequence[str],
    allow_unexpected: Sequence[str],
    where: str,
) -> None:
    in_file = dict.fromkeys([*match.sources, *match.skipped])
    warn_of_unused("allow_missing", allow_missing, wanted, in_file, f"the model or {where}")
    warn_of_unused("allow_unexpected", allow_unexpected, in_file, wanted, f"{where} or the model")


def _write(stream: BinaryIO, name: str, pieces: Iterable[Buffer]) -> None:
    with compress(stream, compression_of(name)) as output:
        for piece in pieces:
            output.write(piece)


def resolve_location(location: PathOrStream, method: str) -> PathOrStream:
    """Return the location with `~` expanded; raise if it is neither a path nor a binary stream."""
    if isinstance(location, io.TextIOBase):
        raise CheckpointError("this is a text stream. Open it in binary mode: open(path, 'rb') or 'wb'.")
    if isinstance(location, str | os.PathLike):
        if "\0" in os.fspath(location):
            check_path(location, example="model.fdl", error=CheckpointError)
        path = expand_user(location)
        if method == "read":
            check_file(path)
        return path
    _check_not_an_optimizer(location)
    if not callable(getattr(location, method, None)):
        call = "save_checkpoint" if method == "write" else "load_checkpoint"
        raise CheckpointError(
            f"expected a path or a binary stream, got {a_type(location)}. Pass the path first, "
            f"then the tensors: {call}('model.fdl', model.state_dict())."
        )
    return location


def check_tensor_dict(named_tensors: object) -> None:
    """Raise unless the argument is a dict with strings as keys."""
    _check_not_an_optimizer(named_tensors)
    if not isinstance(named_tensors, Mapping):
        raise CheckpointError(
            f"the tensors are {a_type(named_tensors)}. Pass a dict of tensors by name, such as "
            "model.state_dict()."
        )
    for name in named_tensors:
        if not isinstance(name, str):
            raise CheckpointError(f"the key {name!r} is not a string. Use names such as '{name}'.")


def _check_patterns(**options: object) -> None:
    """Raise unless each option is a name, a pattern, or a list of them."""
    for option, patterns in options.items():
        listed = [patterns] if isinstance(patterns, str) else patterns
        if not isinstance(listed, Collection) or not all(isinstance(pattern, str) for pattern in listed):
            raise CheckpointError(
                f"{option}={patterns!r}. Pass a list of names or patterns, such as ['head.*'], or ['*'] for "
                "all."
            )


def _check_not_an_optimizer(value: object) -> None:
    is_state = isinstance(value, Mapping) and value.keys() == {"state", "param_groups"}
    if is_state or isinstance(value, Optimizer):
        what = "the state of an optimizer" if is_state else f"an optimizer ({type(value).__name__})"
        raise CheckpointError(
            f"this is {what}, and a checkpoint file has the tensors of a model. Pass model.state_dict(). To "
            "continue a run, save both together: save_bundle('run', step, {'model': model.state_dict(), "
            "'optimizer': optimizer.state_dict()}), or let a Trainer do it with checkpoint_dir."
        )
