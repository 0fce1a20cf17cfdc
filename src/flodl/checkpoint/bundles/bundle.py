"""Save and read a bundle: a folder with everything needed to resume a run, written atomically.

Each part is one file: state with tensors is a `.fdl` file (so `model.fdl` loads like any checkpoint), state
without tensors a `.json` file. The files are written to a hidden folder, the manifest last. After everything
is flushed to disk, a rename makes the folder visible.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from flodl.core import CheckpointError, DamagedError, WriteError
from flodl.core.files import expand_user, sync_path
from flodl.core.formats import a_type
from flodl.core.integers import as_integer, is_integer
from flodl.core.output_files import check_path, check_path_type, explain_write, shown
from flodl.core.paths import suggestion

from ..codec import Json, decode, encode
from ..durable_files import (
    DiskFile,
    delete_folder,
    exclusive_lock,
    hidden_sibling,
    is_hidden_sibling,
    shared_lock,
)
from ..files.keywords import suggest_keywords
from ..formats.byte_reader import MemoryReader, map_file
from ..formats.checksum import Buffer, digest, start_digest
from ..formats.serialization import open_safetensors, serialize_safetensors
from ..formats.storable import check_storable
from ..label_names import labels_metadata
from . import manifest
from .manifest import Bundle, FileInfo, Latest, folder_name, open_bundle, step_and_revision

Encoded = tuple[Json, Mapping[str, Tensor]]

_STRUCTURE = "flodl_state"


@suggest_keywords
def save_bundle(
    root: str | os.PathLike[str],
    step: int,
    parts: Mapping[str, Any],
    *,
    metrics: Mapping[str, float] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Save the named parts of a run, each a nested state, and return the new folder.

    Saving a step again replaces the earlier save once the new one is on disk. Each file with tensors contains
    the `metadata`, such as the `structural_hash` of the graph, which `load_checkpoint` compares.

    >>> import tempfile, torch
    >>> root = tempfile.mkdtemp()
    >>> path = save_bundle(root, 37, {"model": {"w": torch.ones(2)}, "data": {"epoch": 1}})
    >>> path.name, sorted(file.name for file in path.iterdir())
    ('step-00000037', ['data.json', 'manifest.json', 'model.fdl'])
    >>> read_bundle(path)
    {'model': {'w': tensor([1., 1.])}, 'data': {'epoch': 1}}
    """
    step = as_integer(step)
    encoded = encode_parts(step, parts)
    texts = metadata_of(parts, metadata)
    return write_bundle(root, step, encoded, metrics=as_floats(metrics), metadata=texts)


@suggest_keywords
def read_bundle(
    bundle: Bundle | Latest | str | os.PathLike[str],
    *,
    parts: Iterable[str] | None = None,
    verify: bool = True,
) -> dict[str, Any]:
    """Return the parts of a bundle, all or only those named, with tensors on the CPU.

    `bundle` is a folder, or what `list_bundles` and `latest_bundle` return.

    Checksums are compared with the manifest unless `verify` is False, which is safe right after
    `latest_bundle` has compared them.
    """
    bundle = open_bundle(bundle)
    names = bundle.parts if parts is None else [parts] if isinstance(parts, str) else list(parts)
    for name in names:
        if name not in bundle.parts:
            hint = suggestion(name, bundle.parts, known_as="parts")
            raise CheckpointError(f"the bundle {str(bundle.path)!r} has no part {name!r}. {hint}")
    return {
        Path(file).stem: _read_part(bundle, file, verify) for file in bundle.files if Path(file).stem in names
    }


def _read_part(bundle: Bundle, file: str, verify: bool) -> Any:
    """Read one file of a bundle and decode its state."""
    with _raise_damaged(bundle, file):
        data = map_file(bundle.path / file)
        if verify:
            _check_file(data, bundle.files[file])
        if file.endswith(".json"):
            return decode(json.loads(bytes(data)), {})
        contents = open_safetensors(MemoryReader(data), verify=False)
        return decode(json.loads(contents.metadata[_STRUCTURE]), contents.read())


@suggest_keywords
def verify_bundle(bundle: Bundle | Latest | str | os.PathLike[str]) -> None:
    """Compare every file with its checksum; raise DamagedError if one differs."""
    bundle = open_bundle(bundle)
    for file, info in bundle.files.items():
        with _raise_damaged(bundle, file):
            _check_file(map_file(bundle.path / file), info)


def verify_part_file(path: str | os.PathLike[str], metadata: Mapping[str, str]) -> None:
    """Compare a file with its checksum in the manifest next to it, if there is one.

    The files of a bundle have no checksum of their own, so a copy outside its bundle cannot be verified.
    """
    file = Path(os.path.realpath(path))
    if not (file.parent / manifest.MANIFEST_NAME).exists():
        return
    try:
        bundle = manifest.parse_manifest(file.parent)
    except (OSError, ValueError) as error:
        if _STRUCTURE not in metadata:
            return  # not a part of a bundle, and the manifest is that of another program
        reason = error.strerror if isinstance(error, OSError) else error
        raise DamagedError(
            f"the checksum of {str(path)!r} is unknown, because the manifest next to it is damaged: {reason}",
            advice="Use another bundle, or copy the file to another folder to load it without verification.",
        ) from error
    if file.name in bundle.files:
        with _raise_damaged(bundle, file.name):
            _check_file(map_file(file), bundle.files[file.name])


def encode_parts(step: int, parts: Mapping[str, Any]) -> dict[str, Encoded]:
    """Encode the parts of a run; raise for anything that cannot be saved, before any file is created."""
    if not is_integer(step, at_least=0):
        raise CheckpointError(f"step={step!r}. Pass the number of updates so far, an integer >= 0.")
    if not isinstance(parts, Mapping):
        raise CheckpointError(
            f"the parts are {a_type(parts)}. Pass a dict of states by name: {{'model': model.state_dict()}}."
        )
    encoded: dict[str, Encoded] = {}
    for name, state in parts.items():
        if not isinstance(name, str) or not manifest.PART_NAME.match(name) or name == "manifest":
            raise CheckpointError(
                f"{name!r} is not a valid part name. Use letters, digits, '_' and '-', and not 'manifest'."
            )
        try:
            encoded[name] = encode(state)
        except CheckpointError as error:
            raise error.under(name) from None
    return encoded


@suggest_keywords
def check_parts(parts: Mapping[str, Any]) -> None:
    """Raise for anything in the parts of a run that cannot be saved; nothing is written or copied.

    >>> check_parts({"hooks": {"seen": {1, 2}}})
    Traceback (most recent call last):
    flodl.core.errors.CheckpointError: at 'hooks.seen': a set cannot be saved. ...
    """
    for part, (_, tensors) in encode_parts(0, parts).items():
        for name, tensor in tensors.items():
            try:
                check_storable(name, tensor)
            except CheckpointError as error:
                raise error.under(part) from None


def as_floats(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    """Return metrics as floats; synchronizes if one is a tensor on a device."""
    if not isinstance(metrics, Mapping | None):
        raise CheckpointError(
            f"metrics={metrics!r}. Pass a dict of numbers by name, such as {{'loss': 0.5}}."
        )
    try:
        return {str(name): float(value) for name, value in (metrics or {}).items()}
    except (TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"a metric is not a number: {error}. Pass one number per name.") from error


def as_texts(metadata: Mapping[str, Any] | None) -> dict[str, str]:
    """Return metadata as strings."""
    if not isinstance(metadata, Mapping | None):
        raise CheckpointError(f"metadata={metadata!r}. Pass a dict of texts by name.")
    return {str(key): str(value) for key, value in (metadata or {}).items()}


def metadata_of(parts: Mapping[str, Any], metadata: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the metadata of a bundle, including the label names of a `state_dict()` in it."""
    return {**labels_metadata(*parts.values()), **as_texts(metadata)}


def write_bundle(
    root: str | os.PathLike[str],
    step: int,
    parts: Mapping[str, Encoded],
    *,
    metrics: Mapping[str, float],
    metadata: Mapping[str, str],
) -> Path:
    """Save parts that are already encoded."""
    folder = folder_to_write(root)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        clean_bundles(folder)
        with shared_lock(folder):
            earlier = _revisions(folder, step)
            target = folder / folder_name(step, max(earlier, default=0) + 1)
            _write_folder(target, step, parts, metrics, metadata)
            for revision in earlier.values():
                if revision.is_dir():
                    delete_folder(revision)
    except OSError as error:
        path, unchanged = folder / folder_name(step, 1), "Earlier bundles are unchanged."
        exists = os.path.isdir(path)
        reason = explain_write(error, None if exists else path, example="run", unchanged=unchanged)
        if exists and error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            reason = f"another run has saved this step there. {unchanged} Give each run a folder of its own."
        raise WriteError(f"cannot save step {step} in {shown(folder)}: {reason}") from error
    return target


def folder_to_write(root: str | os.PathLike[str]) -> Path:
    """Return the folder for bundles with `~` expanded; raise if the path is empty."""
    check_path_type(root, what="folder", example="bundles", error=CheckpointError)
    if not os.fspath(root):
        raise CheckpointError(
            f"the folder for the bundles is {root!r}. Pass a path; '.' is the working directory."
        )
    if "\0" in os.fspath(root):
        check_path(root, what="folder", example="bundles", error=CheckpointError)
    return expand_user(root)


def folder_to_read(root: str | os.PathLike[str]) -> Path:
    """Return a folder with `~` expanded; raise if it is not a path."""
    check_path_type(root, what="folder", example="bundles", error=CheckpointError)
    return expand_user(root)


@suggest_keywords
def clean_bundles(root: str | os.PathLike[str]) -> list[str]:
    """Delete what interrupted saves and deletions left behind, and return the names.

    Does nothing while another save is in progress in the same folder.
    """
    folder = folder_to_read(root)
    leftovers = [name for name in os.listdir(folder) if is_hidden_sibling(name)] if folder.is_dir() else []
    if not leftovers:
        return []
    with exclusive_lock(folder) as is_locked:
        if not is_locked:
            return []
        for name in leftovers:
            shutil.rmtree(folder / name, ignore_errors=True)
    return leftovers


def _write_folder(
    target: Path,
    step: int,
    parts: Mapping[str, Encoded],
    metrics: Mapping[str, float],
    metadata: Mapping[str, str],
) -> None:
    temporary = hidden_sibling(target, "part")
    os.mkdir(temporary)
    try:
        files: dict[str, FileInfo] = {}
        for name, (structure, tensors) in parts.items():
            text = json.dumps(structure, indent=None if tensors else 1)
            pieces: Iterable[Buffer] = [text.encode()]
            if tensors:
                pieces = serialize_safetensors(tensors, {**metadata, _STRUCTURE: text}, checksum=False)
            file = f"{name}.fdl" if tensors else f"{name}.json"
            files[file] = _write_file(temporary / file, pieces)
        _write_file(temporary / manifest.MANIFEST_NAME, [manifest.serialize_manifest(step, metrics, files)])
        sync_path(temporary)
        os.rename(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_path(target.parent)


def _write_file(path: Path, pieces: Iterable[Buffer]) -> FileInfo:
    pieces = list(pieces)
    with DiskFile(path) as file:
        checksum = start_digest(pieces)
        for piece in pieces:
            file.write(piece)
        file.sync()
    return FileInfo(sum(map(len, pieces)), checksum())


def _check_file(data: Any, info: FileInfo) -> None:
    if len(data) != info.num_bytes or digest([memoryview(data)]) != info.digest:
        raise ValueError("its checksum differs from the one that was written")


def _revisions(root: Path, step: int) -> dict[int, Path]:
    """Return the folders in which a step is saved, by revision."""
    folders = {name: step_and_revision(name) for name in os.listdir(root)}
    return {found[1]: root / name for name, found in folders.items() if found and found[0] == step}


@contextmanager
def _raise_damaged(bundle: Bundle, file: str) -> Iterator[None]:
    """Turn errors of the block into DamagedError that names the file."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        raise DamagedError(f"cannot read {str(bundle.path / file)!r}: {error.strerror}.") from error
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError) as error:
        what = f"{str(bundle.path / file)!r} is damaged: {error}"
        raise DamagedError(what, advice="Use another bundle: latest_bundle finds one.") from error
