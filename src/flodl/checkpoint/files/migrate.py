"""Migrate a checkpoint to a model whose parameter names have changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from torch import Tensor

from flodl.core import CheckpointError
from flodl.core.paths import suggestion

from ..formats.byte_reader import PathOrStream, display_name
from ..formats.serialization import is_flodl_key
from .by_shape import match_by_shape
from .keywords import suggest_keywords
from .report import MigrateReport
from .save_load import Format, check_tensor_dict, read_checkpoint, resolve_location, save_checkpoint

Rename = Mapping[str, str] | Callable[[str], str]


@suggest_keywords
def migrate_checkpoint(
    source: PathOrStream,
    target: PathOrStream,
    named_tensors: Mapping[str, Tensor],
    *,
    rename: Rename | None = None,
    by_shape: bool = True,
    format: Format = "safetensors",
) -> MigrateReport:
    """Write a checkpoint with the names of a model, and report what happened to each tensor.

    `rename` maps old names or prefixes to new ones, or is a function of the old name. Next, equal names with
    equal shapes are matched. Finally, unless `by_shape` is False, each remaining name of the model takes the
    first remaining tensor of the file with the same shape and type, but never a weight for a bias. Read the
    report: `guessed` lists the names whose tensor is one of several of the same shape, if only their order
    decided. Your own metadata is kept, except with `format="fdlc"`.

    >>> import torch, tempfile
    >>> from flodl.checkpoint import save_checkpoint
    >>> folder = tempfile.mkdtemp()
    >>> save_checkpoint(f"{folder}/old.fdl", {"fc.weight": torch.ones(2), "gone": torch.ones(9)})
    >>> model = {"head.weight": torch.zeros(2)}
    >>> print(migrate_checkpoint(f"{folder}/old.fdl", f"{folder}/new.fdl", model, rename={"fc": "head"}))
    0 unchanged, 1 remapped (fc.weight → head.weight), 1 dropped (gone)
    """
    source, target = resolve_location(source, "read"), resolve_location(target, "write")
    check_tensor_dict(named_tensors)
    _check_type(rename)
    _check_different_files(source, target)
    stored, metadata = read_checkpoint(source)
    sources = _match_by_name(stored, named_tensors, rename, display_name(source))
    guessed = match_by_shape(sources, stored, named_tensors) if by_shape else ()
    ordered = {name: sources[name] for name in named_tensors if name in sources}
    own = {key: value for key, value in metadata.items() if not is_flodl_key(key)}
    kept = own if format == "safetensors" else {}
    tensors = {name: stored[old] for name, old in ordered.items()}
    save_checkpoint(target, tensors, metadata=kept, format=format)
    used = set(ordered.values())
    return MigrateReport(
        unchanged=tuple(name for name, old in ordered.items() if old == name),
        remapped=tuple((old, name) for name, old in ordered.items() if old != name),
        dropped=tuple(old for old in stored if old not in used),
        missing=tuple(name for name in named_tensors if name not in ordered),
        metadata=tuple(kept),
        dropped_metadata=tuple(key for key in own if key not in kept),
        guessed=guessed,
    )


def _match_by_name(
    stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor], rename: Rename | None, where: str
) -> dict[str, str]:
    """Return the old name for each new name, matched by `rename` and then by equal names."""
    sources: dict[str, str] = {}
    if isinstance(rename, Mapping):
        _check_rename(rename, stored, where)
    for old in stored:
        new = _new_name(old, rename)
        if new == old:
            continue
        if new not in wanted:
            raise CheckpointError(
                f"rename turns {old!r} into {new!r}, which the model lacks. "
                f"{suggestion(new, wanted, known_as='names')}"
            )
        if new in sources:
            raise CheckpointError(
                f"rename turns both {sources[new]!r} and {old!r} into {new!r}. Rename one of them."
            )
        if stored[old].shape != wanted[new].shape:
            raise CheckpointError(
                f"{where} has {old!r} of shape {tuple(stored[old].shape)}, the model "
                f"{tuple(wanted[new].shape)}. Leave it out of rename.",
                path=new,
            )
        sources[new] = old
    taken = set(sources.values())
    for name, tensor in wanted.items():
        if (
            name not in sources
            and name not in taken
            and name in stored
            and stored[name].shape == tensor.shape
        ):
            sources[name] = name
    return sources


def _new_name(old: str, rename: Rename | None) -> str:
    if rename is None:
        return old
    if callable(rename):
        new = rename(old)
        if not isinstance(new, str):
            raise CheckpointError(
                f"rename returned {new!r} for {old!r}. It must return a name: the old one if unchanged."
            )
        return new
    if old in rename:
        return rename[old]
    # The longest prefix wins: 'encoder.attention' takes precedence over 'encoder'.
    prefixes = [prefix for prefix in rename if old.startswith(f"{prefix.rstrip('.')}.")]
    if not prefixes:
        return old
    prefix = max(prefixes, key=len)
    rest = old[len(prefix.rstrip(".")) + 1 :]
    new = rename[prefix].rstrip(".")
    return f"{new}.{rest}" if new else rest


def _check_type(rename: object) -> None:
    if rename is not None and not isinstance(rename, Mapping) and not callable(rename):
        raise CheckpointError(
            f"rename must be a dict of old and new names, a function or None, got {rename!r}. For example, "
            "pass rename={'fc': 'head'}."
        )
    for old in rename if isinstance(rename, Mapping) else ():
        if not isinstance(old, str):
            raise CheckpointError(f"rename has the key {old!r}. Pass the old name or prefix as a string.")


def _check_rename(rename: Mapping[str, str], stored: Mapping[str, Tensor], where: str) -> None:
    for old, new in rename.items():
        if not isinstance(new, str):
            raise CheckpointError(f"rename has {new!r} for {old!r}. Pass the new name or prefix as a string.")
        if old not in stored and not any(name.startswith(f"{old.rstrip('.')}.") for name in stored):
            raise CheckpointError(
                f"rename has {old!r}, which {where} lacks. {suggestion(old, stored, known_as='names')}"
            )


def _check_different_files(source: PathOrStream, target: PathOrStream) -> None:
    if not isinstance(source, str | os.PathLike) or not isinstance(target, str | os.PathLike):
        return
    if os.path.realpath(source) == os.path.realpath(target):
        raise CheckpointError(
            f"source and target are both {display_name(source)}. Write to a different file, and keep the old "
            "one until you have read the report."
        )
