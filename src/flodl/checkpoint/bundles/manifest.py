"""The page that makes a folder a bundle: what is in it, how long each file is, and its checksum."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flodl.core import DamagedError

from ..codec import decode, encode
from ..formats.checksum import ALGORITHM, digest

MANIFEST_NAME = "manifest.json"
PART_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_\-]*\Z")
_FILE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_\-]*\.(fdl|json)\Z")
_FOLDER_NAME = re.compile(r"step-(\d{8,})(?:\.(\d+))?\Z")
_FORMAT = 1
_MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class FileFacts:
    """Length and checksum of one file."""

    num_bytes: int
    digest: str


@dataclass(frozen=True)
class Bundle:
    """One save on disk: its folder, the step, the metrics that it was saved with, and its files."""

    path: Path
    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    created_s: float = 0.0
    files: Mapping[str, FileFacts] = field(default_factory=dict)

    @property
    def parts(self) -> list[str]:
        """The names of what was saved, such as 'model' and 'optimizer'."""
        return [Path(name).stem for name in self.files]

    @property
    def num_bytes(self) -> int:
        """The size of all files together."""
        return sum(facts.num_bytes for facts in self.files.values())


def folder_name(step: int, revision: int) -> str:
    """Name the folder of a save; a step that is saved again gets a revision.

    >>> folder_name(1234, 1), folder_name(1234, 2)
    ('step-00001234', 'step-00001234.2')
    """
    return f"step-{step:08d}" if revision == 1 else f"step-{step:08d}.{revision}"


def step_and_revision(name: str) -> tuple[int, int] | None:
    """Read the name of a folder, or give None for one that is no bundle."""
    found = _FOLDER_NAME.match(name)
    return (int(found[1]), int(found[2] or 1)) if found else None


def is_bundle(folder: Path) -> bool:
    """Return whether a folder has a manifest, readable or not."""
    return (folder / MANIFEST_NAME).exists()


def write_manifest(step: int, metrics: Mapping[str, float], files: Mapping[str, FileFacts]) -> bytes:
    """Give the text of the page."""
    content: dict[str, Any] = {
        "format": _FORMAT,
        "step": step,
        "created_s": time.time(),
        "metrics": encode(dict(metrics))[0],
        "algorithm": ALGORITHM,
        "files": {name: {"bytes": facts.num_bytes, "digest": facts.digest} for name, facts in files.items()},
    }
    return json.dumps(content | {"digest": _own_digest(content)}, indent=1).encode()


def read_manifest(folder: Path) -> Bundle:
    """Read the page of a bundle and compare the lengths of its files; raises DamagedError with the reason."""
    try:
        path = folder / MANIFEST_NAME
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"{MANIFEST_NAME} has {path.stat().st_size} bytes")
        bundle = _parsed(folder, json.loads(path.read_bytes()))
        for name, facts in bundle.files.items():
            length = os.stat(folder / name).st_size
            if length != facts.num_bytes:
                raise ValueError(f"{name} has {length} bytes, the manifest says {facts.num_bytes}")
    except OSError as error:
        missing = Path(error.filename or MANIFEST_NAME).name
        what = f"the bundle {str(folder)!r}: {missing}: {error.strerror}"
        raise DamagedError(what, advice="Take another.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"the bundle {str(folder)!r} is damaged: {error}"
        raise DamagedError(what, advice="Take another.") from error
    return bundle


def _parsed(folder: Path, content: Any) -> Bundle:
    if not isinstance(content, dict):
        raise ValueError(f"{MANIFEST_NAME} is not a table")
    own = content.pop("digest", None)
    if own != _own_digest(content):
        raise ValueError(f"{MANIFEST_NAME} is not the one that was written: its checksum differs")
    if content["format"] != _FORMAT:
        raise ValueError(f"it has format {content['format']}; this version of flodl reads {_FORMAT}")
    named = step_and_revision(folder.name)
    if named is not None and named[0] != content["step"]:
        raise ValueError(f"it was saved at step {content['step']}")
    files = {name: FileFacts(facts["bytes"], facts["digest"]) for name, facts in content["files"].items()}
    for name in files:
        if not _FILE_NAME.match(name):
            raise ValueError(f"{name!r} is no name of a part")
    return Bundle(folder, content["step"], decode(content["metrics"], {}), content["created_s"], files)


def _own_digest(content: Mapping[str, Any]) -> str:
    return digest([json.dumps(content, sort_keys=True).encode()])
