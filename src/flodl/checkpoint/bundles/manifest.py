"""The manifest of a bundle: its step and metrics, and the length and checksum of each file."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from flodl.core import CheckpointError, DamagedError
from flodl.core.files import expand_user, open_regular
from flodl.core.formats import a_type

from ..codec import decode, encode
from ..files.keywords import suggest_keywords
from ..formats.checksum import ALGORITHM, digest

MANIFEST_NAME = "manifest.json"
PART_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_\-]*\Z")
_FILE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_\-]*\.(fdl|json)\Z")
_FOLDER_NAME = re.compile(r"step-(\d{8,})(?:\.(\d+))?\Z")
_FORMAT = 1
_MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class FileInfo:
    """Length and checksum of one file."""

    num_bytes: int
    digest: str


@dataclass(frozen=True)
class Bundle:
    """One save on disk: its folder, step, metrics and files."""

    path: Path
    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    created_s: float = 0.0
    files: Mapping[str, FileInfo] = field(default_factory=dict)

    @property
    def parts(self) -> list[str]:
        """The names of the saved parts, such as 'model' and 'optimizer'."""
        return [Path(name).stem for name in self.files]

    @property
    def num_bytes(self) -> int:
        """The total size of all files."""
        return sum(info.num_bytes for info in self.files.values())


class Latest(NamedTuple):
    """The newest undamaged bundle, or None, and why newer ones were skipped."""

    bundle: Bundle | None
    skipped: list[str]


def folder_name(step: int, revision: int) -> str:
    """Return the folder name of a save; a step that is saved again gets a revision.

    >>> folder_name(1234, 1), folder_name(1234, 2)
    ('step-00001234', 'step-00001234.2')
    """
    return f"step-{step:08d}" if revision == 1 else f"step-{step:08d}.{revision}"


@suggest_keywords
def step_and_revision(name: str) -> tuple[int, int] | None:
    """Parse the name of a bundle's folder, or return None if it is not one."""
    found = _FOLDER_NAME.match(name)
    return (int(found[1]), int(found[2] or 1)) if found else None


@suggest_keywords
def is_bundle(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder has a manifest, readable or not."""
    return (expand_user(folder) / MANIFEST_NAME).exists()


@suggest_keywords
def newest_folder(root: Path) -> Path | None:
    """Return the folder in `root` that is named like a bundle and has the highest step, or None."""
    try:
        saves = {save: name for name in os.listdir(root) if (save := step_and_revision(name)) is not None}
    except OSError:
        return None
    return root / saves[max(saves)] if saves else None


def saved_again(folder: Path) -> str:
    """Return the new folder of a step that was saved again and whose old folder is gone, or ""."""
    save = step_and_revision(folder.name)
    if save is None or folder.exists():
        return ""
    try:
        saves = {step_and_revision(name): name for name in os.listdir(folder.parent)}
    except OSError:
        return ""
    newer = [found for found in saves if found is not None and found[0] == save[0] and found[1] > save[1]]
    if not newer:
        return ""
    return (
        f"{str(folder)!r} was replaced: step {save[0]} was saved again, in "
        f"{str(folder.parent / saves[max(newer)])!r}. Pass that folder, or the one that save_bundle returned "
        "last."
    )


def serialize_manifest(step: int, metrics: Mapping[str, float], files: Mapping[str, FileInfo]) -> bytes:
    """Return the manifest as JSON."""
    content: dict[str, Any] = {
        "format": _FORMAT,
        "step": step,
        "created_s": time.time(),
        "metrics": encode(dict(metrics))[0],
        "algorithm": ALGORITHM,
        "files": {name: {"bytes": info.num_bytes, "digest": info.digest} for name, info in files.items()},
    }
    return json.dumps(content | {"digest": _content_digest(content)}, indent=1).encode()


@suggest_keywords
def read_manifest(folder: str | os.PathLike[str]) -> Bundle:
    """Read the manifest of a bundle and compare file lengths; raise DamagedError if anything is wrong."""
    folder = expand_user(folder)
    try:
        bundle = parse_manifest(folder)
        for name, info in bundle.files.items():
            with open_regular(folder / name) as file:
                length = os.fstat(file.fileno()).st_size
            if length != info.num_bytes:
                raise ValueError(f"{name} has {length} bytes, the manifest says {info.num_bytes}")
    except OSError as error:
        missing = Path(error.filename or MANIFEST_NAME).name
        what = f"the bundle {str(folder)!r}: {missing}: {error.strerror}"
        raise DamagedError(what, advice="Use another bundle.") from error
    except ValueError as error:
        what = f"the bundle {str(folder)!r} is damaged: {error}"
        raise DamagedError(what, advice="Use another bundle.") from error
    return bundle


def open_bundle(bundle: Bundle | Latest | str | os.PathLike[str]) -> Bundle:
    """Return the bundle that a user passed in any form, with its manifest read; raise if there is none."""
    if isinstance(bundle, Bundle):
        return bundle
    if isinstance(bundle, Latest):
        if bundle.bundle is not None:
            return bundle.bundle
        damaged = f": all are damaged ({'; '.join(bundle.skipped)})" if bundle.skipped else ""
        raise CheckpointError(
            f"latest_bundle found no bundle to read{damaged}. Check its folder, and test for it first: "
            "bundle, _ = latest_bundle(root); if bundle is not None."
        )
    if not isinstance(bundle, str | os.PathLike):
        raise CheckpointError(
            f"expected a bundle, got {a_type(bundle)}. Pass its folder, or what latest_bundle found."
        )
    folder = expand_user(bundle)
    if newer := saved_again(folder):
        raise CheckpointError(newer)
    if not folder.exists():
        raise CheckpointError(
            f"{str(folder)!r} does not exist. Pass the folder of a bundle; list_bundles(root) finds them."
        )
    if folder.is_file():
        raise CheckpointError(f"{str(folder)!r} is a file, and a bundle is a folder. Use load_checkpoint.")
    for root in (folder, folder / "bundles"):
        if not is_bundle(folder) and (newest := newest_folder(root)) is not None:
            raise CheckpointError(
                f"{str(folder)!r} is not a bundle, but contains some. Pass one of them, such as "
                f"{str(newest)!r}, or latest_bundle({str(root)!r})."
            )
    return read_manifest(folder)


def parse_manifest(folder: Path) -> Bundle:
    """Read only the manifest of a bundle; raise ValueError if it is inconsistent, OSError if unreadable."""
    with open_regular(folder / MANIFEST_NAME) as file:
        text = file.read(_MAX_BYTES + 1)
    if len(text) > _MAX_BYTES:
        raise ValueError(f"{MANIFEST_NAME} has more than {_MAX_BYTES} bytes")
    try:
        return _parse(folder, json.loads(text))
    except (LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError) as error:
        raise ValueError(f"{MANIFEST_NAME}: {type(error).__name__}: {error}") from error


def _parse(folder: Path, content: Any) -> Bundle:
    if not isinstance(content, dict):
        raise ValueError(f"{MANIFEST_NAME} is not a JSON object")
    if content.pop("digest", None) != _content_digest(content):
        raise ValueError(f"the checksum of {MANIFEST_NAME} differs from the one that was written")
    if content["format"] != _FORMAT:
        raise ValueError(f"it has format {content['format']!r:.80}; this version of flodl reads {_FORMAT}")
    step, created_s = content["step"], content["created_s"]
    if type(step) is not int or step < 0:
        raise ValueError(f"it has the step {step!r:.80}")
    if type(created_s) not in (int, float):
        raise ValueError(f"it was created at {created_s!r:.80}")
    named = step_and_revision(folder.name)
    if named is not None and named[0] != step:
        raise ValueError(f"it was saved at step {step}")
    return Bundle(folder, step, _parse_metrics(content["metrics"]), created_s, _parse_files(content["files"]))


def _parse_metrics(content: Any) -> dict[str, float]:
    metrics = decode(content, {})
    if not isinstance(metrics, dict) or not all(isinstance(name, str) for name in metrics):
        raise ValueError("its metrics are not a JSON object")
    for name, value in metrics.items():
        if type(value) not in (int, float):
            raise ValueError(f"its metric {name!r} is {value!r:.80}, not a number")
    return {name: float(value) for name, value in metrics.items()}


def _parse_files(content: Any) -> dict[str, FileInfo]:
    files: dict[str, FileInfo] = {}
    for name, info in content.items():
        if not _FILE_NAME.match(name) or Path(name).stem in (
            "manifest",
            *(Path(file).stem for file in files),
        ):
            raise ValueError(f"{name!r} is not a valid file name of a part, or is used twice")
        if type(info["bytes"]) is not int or type(info["digest"]) is not str:
            raise ValueError(f"the length and checksum of {name!r} are not a number and a string")
        files[name] = FileInfo(info["bytes"], info["digest"])
    return files


def _content_digest(content: Mapping[str, Any]) -> str:
    return digest([json.dumps(content, sort_keys=True).encode()])
