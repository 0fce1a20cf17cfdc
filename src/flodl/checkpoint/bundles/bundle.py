"""Everything that a run needs to go on, in one folder per save, there as a whole or not at all.

Each part is one file: tensors with their structure as `.fdl` (so `model.fdl` loads like any checkpoint),
values without tensors as `.json`. They are written to a hidden folder beside the others; the manifest comes
last, one rename makes the folder visible, and everything is flushed to the disk on the way.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from flodl.core import CheckpointError, DamagedError, WriteError
from flodl.core.files import expand_user
from flodl.core.integers import is_integer
from flodl.core.paths import suggestion

from ..codec import Json, decode, encode
from ..durable_files import DiskFile, discard, hidden, is_hidden, shared_lock, sole_lock, sync_folder
from ..formats.byte_reader import Whole, map_file
from ..formats.checksum import Buffer, digest, start_digest
from ..formats.serialization import open_safetensors, pack
from . import manifest
from .manifest import Bundle, FileFacts, folder_name, step_and_revision

Encoded = tuple[Json, Mapping[str, Tensor]]

_STRUCTURE = "flodl_state"


def save_bundle(
    root: str | os.PathLike[str],
    step: int,
    parts: Mapping[str, Any],
    *,
    metrics: Mapping[str, float] | None = None,
) -> Path:
    """Save named parts of a run, each any nested state, and give the folder that holds them.

    A step that is saved again replaces the earlier save once the later one is safe on the disk.

    >>> import tempfile, torch
    >>> root = tempfile.mkdtemp()
    >>> path = save_bundle(root, 37, {"model": {"w": torch.ones(2)}, "data": {"epoch": 1}})
    >>> path.name, sorted(file.name for file in path.iterdir())
    ('step-00000037', ['data.json', 'manifest.json', 'model.fdl'])
    >>> read_bundle(path)
    {'model': {'w': tensor([1., 1.])}, 'data': {'epoch': 1}}
    """
    return write_bundle(root, step, encode_parts(step, parts), metrics=numbers(metrics))


def read_bundle(
    bundle: Bundle | str | os.PathLike[str], *, parts: Iterable[str] | None = None, verify: bool = True
) -> dict[str, Any]:
    """Read the parts of a bundle, all or those named; tensors are on the CPU.

    Checksums are compared with the manifest unless `verify` is off, as it may be right after
    `latest_bundle`, which has compared them.
    """
    known = bundle if isinstance(bundle, Bundle) else manifest.read_manifest(expand_user(bundle))
    names = known.parts if parts is None else list(parts)
    for name in names:
        if name not in known.parts:
            hint = suggestion(name, known.parts, known_as="parts")
            raise CheckpointError(f"the bundle {str(known.path)!r} has no part {name!r}. {hint}")
    return {
        Path(file).stem: read_part(known, file, verify) for file in known.files if Path(file).stem in names
    }


def read_part(bundle: Bundle, file: str, verify: bool) -> Any:
    """Read one file of a bundle and put the state in it together again."""
    with _blamed(bundle, file):
        data = map_file(bundle.path / file)
        if verify:
            _compare(data, bundle.files[file])
        if file.endswith(".json"):
            return decode(json.loads(bytes(data)), {})
        contents = open_safetensors(Whole(data), verify=False)
        return decode(json.loads(contents.metadata[_STRUCTURE]), contents.read())


def verify_bundle(bundle: Bundle) -> None:
    """Compare every file with its checksum; raises DamagedError with the reason."""
    for file, facts in bundle.files.items():
        with _blamed(bundle, file):
            _compare(map_file(bundle.path / file), facts)


def encode_parts(step: int, parts: Mapping[str, Any]) -> dict[str, Encoded]:
    """Take the parts of a run apart; everything that cannot be saved raises here, before any file is made."""
    if not is_integer(step, at_least=0):
        raise CheckpointError(f"step={step!r}. Give the number of updates so far, a whole number from 0 up.")
    encoded: dict[str, Encoded] = {}
    for name, state in parts.items():
        if not isinstance(name, str) or not manifest.PART_NAME.match(name) or name == "manifest":
            raise CheckpointError(
                f"{name!r} cannot name a part. Use letters, digits, '_' and '-', and not 'manifest'."
            )
        try:
            encoded[name] = encode(state)
        except CheckpointError as error:
            raise error.under(name) from None
    return encoded


def numbers(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    """Give metrics as plain numbers, which waits for the device where one is a tensor there."""
    try:
        return {str(name): float(value) for name, value in (metrics or {}).items()}
    except (TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"a metric is not a number: {error}. Give one number for each name.") from error


def write_bundle(
    root: str | os.PathLike[str], step: int, parts: Mapping[str, Encoded], *, metrics: Mapping[str, float]
) -> Path:
    """Save parts that were taken apart already."""
    folder = expand_user(root)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        clean_bundles(folder)
        with shared_lock(folder):
            earlier = _revisions(folder, step)
            target = folder / folder_name(step, max(earlier, default=0) + 1)
            _write_folder(target, step, parts, metrics)
            for revision in earlier.values():
                discard(revision)
    except OSError as error:
        raise WriteError(
            f"cannot save step {step} in {str(folder)!r}: {error.strerror or error}. "
            "Earlier bundles are untouched; make room or choose a folder that can be written."
        ) from error
    return target


def clean_bundles(root: str | os.PathLike[str]) -> list[str]:
    """Delete what an interrupted save or deletion left behind, and give the names.

    Nothing happens while another save is under way in the same folder.
    """
    folder = expand_user(root)
    left = [name for name in os.listdir(folder) if is_hidden(name)] if folder.is_dir() else []
    if not left:
        return []
    with sole_lock(folder) as alone:
        if not alone:
            return []
        for name in left:
            shutil.rmtree(folder / name, ignore_errors=True)
    return left


def _write_folder(
    target: Path, step: int, parts: Mapping[str, Encoded], metrics: Mapping[str, float]
) -> None:
    temporary = hidden(target, "part")
    os.mkdir(temporary)
    try:
        files: dict[str, FileFacts] = {}
        for name, (structure, tensors) in parts.items():
            text = json.dumps(structure, indent=None if tensors else 1)
            file = f"{name}.fdl" if tensors else f"{name}.json"
            pieces = pack(tensors, {_STRUCTURE: text}, checksum=False) if tensors else [text.encode()]
            files[file] = _write_file(temporary / file, pieces)
        _write_file(temporary / manifest.MANIFEST_NAME, [manifest.write_manifest(step, metrics, files)])
        sync_folder(temporary)
        os.rename(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(target.parent)


def _write_file(path: Path, pieces: Iterable[Buffer]) -> FileFacts:
    held = list(pieces)
    with DiskFile(path) as file:
        checksum = start_digest(held)
        for piece in held:
            file.write(piece)
        file.sync()
    return FileFacts(sum(map(len, held)), checksum())


def _compare(data: Any, facts: FileFacts) -> None:
    if len(data) != facts.num_bytes or digest([memoryview(data)]) != facts.digest:
        raise ValueError("its bytes are not those that were written: the checksum differs")


def _revisions(root: Path, step: int) -> dict[int, Path]:
    named = {name: step_and_revision(name) for name in os.listdir(root)}
    return {found[1]: root / name for name, found in named.items() if found is not None and found[0] == step}


@contextmanager
def _blamed(bundle: Bundle, file: str) -> Iterator[None]:
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        raise DamagedError(f"cannot read {str(bundle.path / file)!r}: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        what = f"{str(bundle.path / file)!r} is damaged: {error}"
        raise DamagedError(what, advice="Take another bundle: latest_bundle finds one.") from error
