"""The source files of an entry: the files that it names, what they import, and a hash over all of them."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from flodl.cli.manifest.discovery import is_file
from flodl.cli.manifest.loader import Manifest
from flodl.core import environment

MAX_FILES = 300
MAX_BYTES = 1_000_000  # per file; a script may embed its data
_SCHEMA_MENTION = re.compile(rb"fdl-schema|^\s*(?:from|import)\s+flodl\.cli\b", re.MULTILINE)
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n;#]*)|import[ \t]+([\w., \t]+))",
    re.MULTILINE,
)
_SCRIPT_NAME = re.compile(rb"[\w./-]+\.py\b")


def fingerprint(manifest: Manifest) -> str:
    """Return a hash of the entry and of every file that it names or imports, directly or not.

    Cached schemas are valid only for the same fingerprint.
    """
    document = manifest.document
    entry = str(document.value("entry") or "")
    digest = hashlib.sha256(f"{entry}\0{document.value('docker')}".encode())
    for path in _source_files(manifest.folder, entry):
        digest.update(f"\0{os.path.relpath(path, manifest.folder)}\0".encode())
        digest.update(hashlib.sha256(_text(path)).digest())
    return digest.hexdigest()


def source_hashes(folder: Path, entry: str, *, project: Path) -> dict[str, str]:
    """Return a hash of each source file of an entry in the project, by its path there.

    Files that the entry names are included wherever they are; programs such as an interpreter are not.
    """
    named = {path for path, _root in named_files(folder, entry)}
    found = {}
    for path in _source_files(folder, entry):
        is_own = path in named or path.resolve().is_relative_to(project.resolve())
        text = _text(path)
        if is_own and "site-packages" not in path.parts and b"\0" not in text:
            found[os.path.relpath(path, project)] = hashlib.sha256(text).hexdigest()
    return found


def supports_schema(folder: Path, entry: str) -> bool:
    """Return whether the source of a program shows that it answers `--fdl-schema`."""
    return any(_SCHEMA_MENTION.search(_text(path)) for path, _root in named_files(folder, entry))


def named_files(folder: Path, entry: str) -> Iterator[tuple[Path, Path]]:
    """Yield the files that the words of an entry name, each with the folder that it imports from.

    Examples are `tool.sh`, `../src/train.py` and `-m package.module`. Modules are located as Python would.
    """
    words = entry.split()
    for before, word in zip(["", *words], words):
        if before == "-m":
            yield from _module_files(folder, word)
        elif is_file(path := folder / word):
            yield path, path.parent


def has_arguments(folder: Path, entry: str) -> bool:
    """Return whether an entry contains arguments after the script or module that it starts."""
    words = entry.split()
    named = [
        index
        for index, (before, word) in enumerate(zip(["", *words], words))
        if before == "-m" or is_file(folder / word)
    ]
    return (named[0] if named else 0) < len(words) - 1


def _module_files(folder: Path, name: str) -> Iterator[tuple[Path, Path]]:
    first, *inner = name.split(".")
    for root in dict.fromkeys([folder, *_installed_roots(first)]):
        base = root.joinpath(first, *inner)
        found = [path for path in (base.with_suffix(".py"), base / "__main__.py") if is_file(path)]
        if found:
            yield from ((path, root) for path in found)
            return


def _installed_roots(name: str) -> list[Path]:
    """Return the folders that contain an installed top-level module, without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return []
    locations = list(spec.submodule_search_locations or ()) if spec else []
    if spec and spec.origin and not locations:
        return [Path(spec.origin).parent]
    return [Path(location).parent for location in locations]


def _source_files(folder: Path, entry: str) -> Iterator[Path]:
    """Yield every source file of an entry once: the files that it names, then what they import, and so on."""
    pending = list(named_files(folder, entry))
    if not pending and entry.split() and (program := _find_program(entry.split()[0])):
        pending.append((program, folder))
    seen: set[Path] = set()
    while pending and len(seen) < MAX_FILES:
        path, root = pending.pop(0)
        if path in seen:
            continue
        seen.add(path)
        yield path
        text = _text(path)
        if path.suffix == ".py":
            pending += [(found, root) for found in _imported(text, path, root)]
        else:
            words = (folder / match.decode(errors="replace") for match in _SCRIPT_NAME.findall(text))
            pending += [(found, found.parent) for found in words if is_file(found)]


def _find_program(word: str) -> Path | None:
    found = shutil.which(word, path=environment.search_path())
    return Path(found) if found else None


def _imported(text: bytes, path: Path, root: Path) -> Iterator[Path]:
    """Yield the files below `root` that a module imports."""
    for origin, names, plain in _IMPORT.findall(text):
        if plain:
            modules = [name.split(b" as ")[0].strip() for name in plain.split(b",")]
            bases = [root.joinpath(*_parts(module)) for module in modules]
        else:
            dots = len(origin) - len(origin.lstrip(b"."))
            start = root if not dots else path.parents[min(dots, len(path.parents)) - 1]
            package = start.joinpath(*_parts(origin.lstrip(b".")))
            inner = re.findall(rb"[\w]+", names)
            bases = [package, *(package / word.decode(errors="replace") for word in inner)]
        for base in bases:
            packages = [inner / "__init__.py" for inner in (base, *base.parents) if root in inner.parents]
            candidates = [base.with_suffix(".py") if base.name else base, *packages]
            yield from (found for found in candidates if is_file(found))


def _parts(module: bytes) -> list[str]:
    return [part for part in module.decode(errors="replace").split(".") if part]


def _text(path: Path) -> bytes:
    """Return the text of a file, or the beginning of a large one. An unreadable file is empty."""
    try:
        if not path.is_file():  # a pipe would never end
            return b""
        with path.open("rb") as stream:
            return stream.read(MAX_BYTES)
    except OSError:
        return b""
