"""The files behind an entry: which it names, what they import, and one hash over all of their text."""

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

MOST_FILES = 300
MOST_BYTES = 1_000_000  # of one file; a program may carry its data with it
_SIGN = re.compile(rb"fdl-schema|^\s*(?:from|import)\s+flodl\.cli\b", re.MULTILINE)
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n;#]*)|import[ \t]+([\w., \t]+))",
    re.MULTILINE,
)
_SCRIPT_NAME = re.compile(rb"[\w./-]+\.py\b")


def fingerprint(manifest: Manifest) -> str:
    """Give a hash of the entry and of the text of every file that it names or, further on, imports.

    A schema is kept under it: whatever changes what a program takes changes this.
    """
    document = manifest.document
    entry = str(document.value("entry") or "")
    total = hashlib.sha256(f"{entry}\0{document.value('docker')}".encode())
    for path in _behind(manifest.folder, entry):
        total.update(f"\0{os.path.relpath(path, manifest.folder)}\0".encode())
        total.update(hashlib.sha256(_text(path)).digest())
    return total.hexdigest()


def knows_the_flag(folder: Path, entry: str) -> bool:
    """Say whether the text of a program shows that it answers `--fdl-schema`."""
    return any(_SIGN.search(_text(path)) for path, _root in named_files(folder, entry))


def named_files(folder: Path, entry: str) -> Iterator[tuple[Path, Path]]:
    """Give the files that the words of an entry name, each with the folder that it imports from.

    `tool.sh`, `../src/train.py`, `-m package.module`; a module is looked for as Python would.
    """
    words = entry.split()
    for before, word in zip(["", *words], words):
        if before == "-m":
            yield from _module_files(folder, word)
        elif is_file(path := folder / word):
            yield path, path.parent


def has_words_of_its_own(folder: Path, entry: str) -> bool:
    """Say whether an entry gives its program words already, behind the script or module that it starts."""
    words = entry.split()
    named = [
        place
        for place, (before, word) in enumerate(zip(["", *words], words))
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
    """Give where a top-level module lies that is installed; nothing is imported to find out."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return []
    places = list(spec.submodule_search_locations or ()) if spec else []
    if spec and spec.origin and not places:
        return [Path(spec.origin).parent]
    return [Path(place).parent for place in places]


def _behind(folder: Path, entry: str) -> Iterator[Path]:
    """Give every file behind an entry once: those that it names, then what they import, and so on."""
    waiting = list(named_files(folder, entry))
    if not waiting and entry.split() and (program := _program(entry.split()[0])):
        waiting.append((program, folder))
    seen: set[Path] = set()
    while waiting and len(seen) < MOST_FILES:
        path, root = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        yield path
        text = _text(path)
        if path.suffix == ".py":
            waiting += [(found, root) for found in _imported(text, path, root)]
        else:
            words = (folder / match.decode(errors="replace") for match in _SCRIPT_NAME.findall(text))
            waiting += [(found, found.parent) for found in words if is_file(found)]


def _program(word: str) -> Path | None:
    found = shutil.which(word, path=environment.search_path())
    return Path(found) if found else None


def _imported(text: bytes, path: Path, root: Path) -> Iterator[Path]:
    """Give the files that a module imports and that lie below `root`."""
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
    """Give the text of a file; of one that cannot be read, nothing, and of a large one its beginning."""
    try:
        with path.open("rb") as stream:
            return stream.read(MOST_BYTES)
    except OSError:
        return b""
