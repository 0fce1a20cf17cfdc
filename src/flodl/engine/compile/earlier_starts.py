"""What earlier starts of the same program compiled, so that the next one does not wait for it again.

A note lies in the folder of the compiler's cache, whose code it describes. It is written once a compiled step
has replaced a slower one. A program with changed code, other shapes or other versions does not find it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import runpy
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from flodl.core.environment import is_compiler_cache_disabled
from flodl.core.files import read_limited, write_atomic

from ..program.program import StepBody
from ..program.runner import Micro
from .payload import pack_step

FOLDER = "flodl"
MAX_NOTE_BYTES = 4 << 20
# Older notes are removed.
MAX_NOTES = 256


class EarlierStarts:
    """The notes of the program that runs now, about steps on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._prefix = _hash(_program(), *_versions(device))

    def latest(self) -> dict[str, Any] | None:
        """Return the latest note of this program, whatever it compiled; None if there is none."""
        notes = [] if is_compiler_cache_disabled() else self._notes()
        return _read(notes[-1]) if notes else None

    def find(self, key: str) -> dict[str, Any] | None:
        """Return the note about a step, unless one of the source files that it runs through has changed."""
        note = _read(self._path(key))
        if note is None or note["sources"] != _stamps(note["sources"]):
            return None
        return note

    def add(self, key: str, findings: Mapping[str, Any]) -> None:
        """Write the note about a step; without one, the next start compiles as this one did."""
        with suppress(OSError, TypeError, ValueError):
            path = self._path(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            note = {**findings, "sources": _stamps([*findings.get("sources", ()), *_own_sources()])}
            write_atomic(path, json.dumps(note))
            for old in _by_age(path.parent.glob("*.json"))[:-MAX_NOTES]:
                old.unlink()

    def forget(self, key: str) -> None:
        """Remove the note about a step."""
        with suppress(OSError):
            self._path(key).unlink()

    def _path(self, key: str) -> Path:
        return notes_folder() / f"{self._prefix}-{key}.json"

    def _notes(self) -> list[Path]:
        return _by_age(notes_folder().glob(f"{self._prefix}-*.json"))


def step_key(body: StepBody, micro: Micro) -> str | None:
    """Return a hash of the code and the shapes of a step; None if it cannot be serialized."""
    try:
        return _hash(pack_step(body, micro))
    except Exception:  # then it cannot be compiled in another process either, which is reported there
        return None


@cache
def notes_folder() -> Path:
    """Return the folder of the notes, without importing the compiler, which takes seconds."""
    # Torch keeps this file free of imports.
    script = Path(torch.__file__).parent / "_inductor" / "runtime" / "cache_dir_utils.py"
    try:
        return Path(runpy.run_path(str(script))["cache_dir"]()) / FOLDER
    except Exception:  # without a cache there is nothing to find
        return Path(os.devnull) / FOLDER


def _program() -> str:
    """Return the script that runs, or a module that `python -m` runs."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.abspath(main) if main else os.getcwd()


def _versions(device: torch.device) -> Sequence[str]:
    flodl: Any = sys.modules["flodl"]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return (flodl.__version__, torch.__version__, platform.python_version(), device.type, name)


def _hash(*parts: str | bytes) -> str:
    found = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "big") + data)
    return found.hexdigest()[:32]


def _own_sources() -> list[str]:
    """Return the files of all imported modules that are not installed packages."""
    installed = tuple({sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(torch.__file__))})
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return [file for file in files if isinstance(file, str) and not file.startswith(installed)]


def _stamps(names: Sequence[str] | Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the time of change and the size of each file that exists."""
    found = {}
    for name in names:
        with suppress(OSError, ValueError):
            status = os.stat(name)
            found[name] = [status.st_mtime_ns, status.st_size]
    return found


def _by_age(paths: Any) -> list[Path]:
    """Return files with the latest last; one that another process removes meanwhile is left out."""
    ages = {}
    for path in paths:
        with suppress(OSError):
            ages[path] = path.stat().st_mtime_ns
    return sorted(ages, key=ages.__getitem__)


def _read(path: Path) -> dict[str, Any] | None:
    """Return a note; None if there is none, or if it is damaged."""
    try:
        note = json.loads(read_limited(path, max_bytes=MAX_NOTE_BYTES))
    except Exception:  # missing, damaged, or too large
        return None
    is_note = isinstance(note, dict) and isinstance(note.get("sources"), dict)
    if not is_note or not isinstance(note.get("modules"), list) or not isinstance(note.get("times"), dict):
        return None
    return note if all(isinstance(name, str) for name in note["modules"]) else None
