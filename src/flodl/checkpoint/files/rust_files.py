"""Load files that the Rust floDl wrote: translate its names, or say how to migrate the file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from flodl.core import CheckpointError

from ..formats.byte_reader import PathOrStream, display_name
from ..formats.rust_names import RustNode, UnclearNamesError, translate
from ..formats.serialization import Contents

_COUNTER = ".num_batches_tracked"


def rust_contents(
    contents: Contents,
    wanted: Mapping[str, Tensor],
    own_names: Mapping[str, str],
    nodes: Sequence[RustNode],
    source: PathOrStream,
    *,
    is_partial: bool,
) -> Contents:
    """Return the contents under the names of the model; a file that this package wrote keeps its names.

    If names may differ (`is_partial`), a file that cannot be translated is matched by its own names.
    """
    stored = contents.shapes
    known = {*wanted, *own_names.values()}
    needed = [name for name in wanted if not name.endswith(_COUNTER)]
    is_own = all(name in known for name in stored)
    if is_own and all(name in stored or own_names.get(name) in stored for name in needed):
        return contents
    if not any("/" in name for name in stored):
        return contents
    try:
        tensors = translate(stored, nodes, wanted)
    except UnclearNamesError as unclear:
        if is_partial or is_own:
            return contents
        raise CheckpointError(_how_to_migrate(unclear, stored, wanted, source)) from None
    return replace(contents, shapes=tensors, read=lambda: tensors)


def uncounted(stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> list[str]:
    """Return the counters of batches that the model has and the file lacks, as the Rust floDl has none."""
    return [name for name in wanted if name.endswith(_COUNTER) and name not in stored]


def _how_to_migrate(
    unclear: UnclearNamesError,
    stored: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    source: PathOrStream,
) -> str:
    is_path = isinstance(source, str | os.PathLike)
    path = Path(source) if isinstance(source, str | os.PathLike) else Path("model.fdl")
    rename = _guess(stored, wanted)
    shown = ", ".join(f"{old!r}: {new!r}" for old, new in [*rename.items()][:3])
    more = ", …" if len(rename) > 3 else ""
    call = (
        f"migrate_checkpoint({repr(str(path)) if is_path else 'stream'}, {path.stem + '-migrated.fdl'!r}, "
        f"model.state_dict(), rename={{{shown}{more}}})"
    )
    return (
        f"{display_name(source)} has names of the Rust floDl that do not match this model in one way only: "
        f"{unclear}. Nothing was loaded. Write a file with the names of the model, and load that: {call}. "
        "Without rename, tensors are matched by shape and order; read the report."
    )


def _guess(stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, str]:
    """Return a rename by shape and order, as a start."""
    left = [name for name in wanted if not name.endswith(_COUNTER)]
    found: dict[str, str] = {}
    for old, tensor in stored.items():
        new = next((name for name in left if wanted[name].shape == tensor.shape), None)
        if new is not None:
            left.remove(new)
            found[old] = new
    return found
