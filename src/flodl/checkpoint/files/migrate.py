"""Carrying a checkpoint over to a model whose names have changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from torch import Tensor

from flodl.core import CheckpointError
from flodl.core.paths import suggestion

from ..formats.byte_reader import PathOrStream, named
from ..formats.serialization import is_of_flodl
from .report import MigrateReport
from .save_load import Format, check_tensors, checked_place, read_checkpoint, save_checkpoint

Rename = Mapping[str, str] | Callable[[str], str]


def migrate_checkpoint(
    source: PathOrStream,
    target: PathOrStream,
    named_tensors: Mapping[str, Tensor],
    *,
    rename: Rename | None = None,
    by_shape: bool = True,
    format: Format = "safetensors",
) -> MigrateReport:
    """Write a checkpoint with the names of a model, and say what became of each.

    Names that you know go into `rename`: old names or prefixes to new ones, or a function of the old name.
    Then equal names with equal shapes are taken; then, unless `by_shape` is off, what is left in the model
    takes, in order, the first tensor that is left in the file with its shape and type. Read the report: two
    layers of one shape are told apart by their order alone. Metadata of your own are kept, except in `fdlc`.

    >>> import torch, tempfile
    >>> from flodl.checkpoint import save_checkpoint
    >>> folder = tempfile.mkdtemp()
    >>> save_checkpoint(f"{folder}/old.fdl", {"fc.weight": torch.ones(2), "gone": torch.ones(9)})
    >>> model = {"head.weight": torch.zeros(2)}
    >>> print(migrate_checkpoint(f"{folder}/old.fdl", f"{folder}/new.fdl", model, rename={"fc": "head"}))
    0 unchanged, 1 remapped (fc.weight → head.weight), 1 dropped (gone)
    """
    source, target = checked_place(source, "read"), checked_place(target, "write")
    check_tensors(named_tensors)
    _refuse_same_file(source, target)
    stored, notes = read_checkpoint(source)
    sources = _known_names(stored, named_tensors, rename, named(source))
    if by_shape:
        _fill_by_shape(sources, stored, named_tensors)
    ordered = {name: sources[name] for name in named_tensors if name in sources}
    own = {key: value for key, value in notes.items() if not is_of_flodl(key)}
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
    )


def _known_names(
    stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor], rename: Rename | None, where: str
) -> dict[str, str]:
    """Pair new names with old ones, by `rename` and then by equal names."""
    sources: dict[str, str] = {}
    if isinstance(rename, Mapping):
        _check_rename(rename, stored, where)
    for old in stored:
        new = _renamed(old, rename)
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


def _renamed(old: str, rename: Rename | None) -> str:
    if rename is None:
        return old
    if callable(rename):
        new = rename(old)
        if not isinstance(new, str):
            raise CheckpointError(
                f"rename gives {new!r} for {old!r}. It must give a name: the old one where nothing changes."
            )
        return new
    if old in rename:
        return rename[old]
    # The longest prefix wins, so that 'encoder.attention' may go elsewhere than 'encoder'.
    leads = [lead for lead in rename if old.startswith(f"{lead.rstrip('.')}.")]
    if not leads:
        return old
    lead = max(leads, key=len)
    rest = old[len(lead.rstrip(".")) + 1 :]
    new = rename[lead].rstrip(".")
    return f"{new}.{rest}" if new else rest


def _check_rename(rename: Mapping[str, str], stored: Mapping[str, Tensor], where: str) -> None:
    for lead, new in rename.items():
        if not isinstance(new, str):
            raise CheckpointError(f"rename has {new!r} for {lead!r}. Give the new name or prefix as text.")
        if lead not in stored and not any(name.startswith(f"{lead.rstrip('.')}.") for name in stored):
            raise CheckpointError(
                f"rename has {lead!r}, which {where} lacks. {suggestion(lead, stored, known_as='names')}"
            )


def _fill_by_shape(
    sources: dict[str, str], stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor]
) -> None:
    used = set(sources.values())
    left = [old for old in stored if old not in used]
    for name, tensor in wanted.items():
        if name in sources:
            continue
        same = (
            old for old in left if stored[old].shape == tensor.shape and stored[old].dtype == tensor.dtype
        )
        old = next(same, None)
        if old is not None:
            left.remove(old)
            sources[name] = old


def _refuse_same_file(source: PathOrStream, target: PathOrStream) -> None:
    if not isinstance(source, str | os.PathLike) or not isinstance(target, str | os.PathLike):
        return
    if os.path.realpath(source) == os.path.realpath(target):
        raise CheckpointError(
            f"source and target are both {named(source)}. Write to another file, and keep the old one "
            "until you have read the report."
        )
