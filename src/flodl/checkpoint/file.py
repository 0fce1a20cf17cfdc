"""Named tensors in one file: safetensors with a little metadata, written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save, save_file
from torch import Tensor

from flodl.core import CheckpointError
from flodl.core.files import replacing
from flodl.core.paths import matches, suggestion

from .report import LoadReport

Target = str | os.PathLike[str] | BinaryIO

_FORMAT = "1"


def save_checkpoint(
    target: Target, named_tensors: Mapping[str, Tensor], *, metadata: Mapping[str, str] | None = None
) -> None:
    """Write named tensors to a path or a binary stream.

    Tensors that share their storage (tied weights) are written once and restored together.
    """
    _check_arguments(target, named_tensors, "write")
    tensors, aliases = _without_ties(named_tensors)
    notes = {**(metadata or {}), "flodl_format": _FORMAT, "flodl_aliases": json.dumps(aliases)}
    if not isinstance(target, str | os.PathLike):
        target.write(save(tensors, notes))
        return
    try:
        with replacing(target) as temporary:
            save_file(tensors, temporary, notes)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"cannot write {_named(target)}: {error}. What was there before is untouched; "
            "make room or choose a folder that can be written."
        ) from error


def load_checkpoint(
    source: Target,
    named_tensors: Mapping[str, Tensor],
    *,
    allow_missing: Sequence[str] = (),
    allow_unexpected: Sequence[str] = (),
    structural_hash: str | None = None,
) -> LoadReport:
    """Fill named tensors, in place, from a path or a binary stream; all of them or none.

    Names must agree except where a pattern in `allow_missing` (only in the model) or
    `allow_unexpected` (only in the file) says otherwise. Values are cast to the dtype of the model.
    """
    _check_arguments(source, named_tensors, "read")
    stored, metadata = read_checkpoint(source)
    where = _named(source)
    missing = [name for name in named_tensors if name not in stored]
    skipped = [name for name in stored if name not in named_tensors]
    _refuse(missing, allow_missing, stored, f"{where} lacks", "allow_missing")
    extra = f"{where} has, and the model lacks,"
    _refuse(skipped, allow_unexpected, named_tensors, extra, "allow_unexpected")
    loaded = [name for name in named_tensors if name in stored]
    _check_places(loaded, stored, named_tensors, where)
    with torch.no_grad():
        for name in loaded:
            named_tensors[name].copy_(stored[name])
    written_by = metadata.get("structural_hash")
    known = written_by is not None and structural_hash is not None
    return LoadReport(
        tuple(loaded), tuple(skipped), tuple(missing), written_by == structural_hash if known else None
    )


def read_checkpoint(source: Target) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read every tensor and the metadata of a checkpoint."""
    try:
        data = Path(source).read_bytes() if isinstance(source, str | os.PathLike) else source.read()
        if data[:2] == b"PK":
            raise CheckpointError(
                f"{_named(source)} is a file of torch.save. Load it with "
                "model.load_state_dict(torch.load(path, weights_only=True)), and save it again with flodl."
            )
        metadata = _metadata(data)
        tensors = load(data)
        aliases = json.loads(metadata.get("flodl_aliases", "{}"))
        tensors |= {name: tensors[held] for name, held in aliases.items()}
        # The reader gives them in an order that changes from run to run.
        tensors = dict(sorted(tensors.items()))
    except OSError as error:
        raise CheckpointError(
            f"cannot read {_named(source)}: {error.strerror or error}. "
            "Give a file that save_checkpoint wrote."
        ) from error
    except (SafetensorError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{_named(source)} is not a whole checkpoint: {error}. Take an earlier one; this one was cut off "
            "or is another kind of file."
        ) from error
    return tensors, metadata


def _check_arguments(place: object, named_tensors: object, method: str) -> None:
    if not isinstance(place, str | os.PathLike) and not callable(getattr(place, method, None)):
        raise CheckpointError(
            f"the place of the checkpoint is a {type(place).__name__}. Give a path or a binary stream first, "
            "then the tensors: save_checkpoint('model.fdl', model.state_dict())."
        )
    if not isinstance(named_tensors, Mapping):
        raise CheckpointError(
            f"the tensors are a {type(named_tensors).__name__}. Give a dict of tensors by name, such as "
            "model.state_dict()."
        )
    if isinstance(place, str | os.PathLike) and os.fspath(place).endswith((".gz", ".zst")):
        raise CheckpointError(
            f"{os.fspath(place)!r} asks for compression, which is not supported. Leave the suffix out; "
            "weights shrink by a few percent at most."
        )


def _named(place: Target) -> str:
    return repr(str(place)) if isinstance(place, str | os.PathLike) else "the stream"


def _metadata(data: bytes) -> dict[str, str]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise ValueError(f"the header claims {length} bytes, the file has {max(len(data) - 8, 0)} left")
    header = json.loads(data[8 : 8 + length])
    notes = header.get("__metadata__", {})
    return {str(key): str(value) for key, value in notes.items()}


def _without_ties(named_tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Give each storage once, contiguous, and the names that share it."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[object, ...], str] = {}
    for name, tensor in named_tensors.items():
        if tensor.is_meta:
            raise CheckpointError(
                "the tensor is on the meta device and has no values to save. Give the model values first.",
                path=name,
            )
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and place in first:
            aliases[name] = first[place]
            continue
        first[place] = name
        plain = tensor.detach().contiguous()
        shares = plain.untyped_storage().nbytes() != plain.numel() * plain.element_size()
        tensors[name] = plain.clone() if shares else plain
    return tensors, aliases


def _refuse(
    names: Sequence[str], allowed: Sequence[str], others: Mapping[str, Tensor], what: str, option: str
) -> None:
    patterns = [allowed] if isinstance(allowed, str) else allowed
    refused = [name for name in names if not any(matches(pattern, name) for pattern in patterns)]
    if not refused:
        return
    shown = ", ".join(map(repr, refused[:4])) + (f" and {len(refused) - 4} more" if len(refused) > 4 else "")
    hint = suggestion(refused[0], others, known_as="names")
    raise CheckpointError(
        f"{what} {shown}. {hint} Nothing was loaded. If this is meant, pass "
        f"{option}=[{refused[0]!r}] or a pattern."
    )


def _check_places(
    names: Sequence[str], stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor], where: str
) -> None:
    for name in names:
        if wanted[name].is_meta:
            raise CheckpointError(
                "the tensor is on the meta device and cannot hold values. "
                "Move the model to a device first, for example with to_empty(device='cpu').",
                path=name,
            )
    wrong = [name for name in names if stored[name].shape != wanted[name].shape]
    if wrong:
        name = wrong[0]
        more = f" {len(wrong) - 1} more names differ." if len(wrong) > 1 else ""
        raise CheckpointError(
            f"{where} has shape {tuple(stored[name].shape)}, the model {tuple(wanted[name].shape)}.{more} "
            "Nothing was loaded. Build the model with the sizes that it was saved with.",
            path=name,
        )
