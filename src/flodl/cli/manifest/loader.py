"""From a manifest and the name of an overlay to one document: inheritance first, then the overlay."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from flodl.core.errors import ManifestError
from flodl.core.paths import suggestion

from .discovery import overlay_file, overlay_names, present
from .document import Leaf, Origin, Table, kind_in_words, plain
from .merge import Deletion, deletions, merge_all
from .parser import read_document

INHERIT = "inherit-from"


@dataclass(frozen=True)
class Manifest:
    """A document with everything laid over it."""

    path: Path
    document: Table
    project: Path  # the folder of the project's own manifest; origins are shown as seen from it
    overlay: str = ""
    overlay_source: str = ""
    deleted: tuple[Deletion, ...] = ()  # what a null takes away from what lies below it
    overlay_files: frozenset[Path] = frozenset()  # the overlay, with what only it inherits from

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def commands(self) -> Table:
        return self.document.table("commands")

    def describe(self) -> str:
        """Give the description, or nothing; it never fails, because help must always be shown."""
        words = self.document.value("description")
        return words.strip() if isinstance(words, str) else ""


def load(path: Path, *, overlay: str = "", source: str = "", project: Path | None = None) -> Manifest:
    """Read a manifest with its parents, and an overlay with its parents over it.

    The project's own manifest must have the overlay that is asked for; those of its commands may.
    """
    layers = _chain(path.resolve())
    own = {file for file, _table in layers}
    over = overlay_file(path, overlay) if overlay else None
    if over:
        layers += _chain(over.resolve())
    elif overlay and project is None:
        known = suggestion(overlay, overlay_names(path), known_as="environments")
        raise ManifestError(
            f"{source or 'the command line'} asks for the environment {overlay!r}, and there is no "
            f"{path.parent / f'fdl.{overlay}.yml'}. {known}"
        )
    tables = dict(layers)  # of a file that stands there twice, the first place counts
    merged = merge_all(tables.values())
    deleted = tuple(deletions(tables.values()))
    above = frozenset(tables.keys() - own)
    return Manifest(path, merged, project or path.parent.resolve(), overlay, source, deleted, above)


def _chain(file: Path, below: tuple[Path, ...] = (), place: Origin | None = None) -> list[tuple[Path, Table]]:
    """Give the documents that one inherits from, the oldest first, and itself; `place` is what names it."""
    if file in below:
        cycle = " → ".join(map(str, (*below[below.index(file) :], file)))
        raise ManifestError(f"{place}: {INHERIT} goes in a cycle: {cycle}. Take one of them out.")
    document = read_document(file)
    own = (file, _without_parent(document))
    parent = _parent(file, document)
    return [*_chain(parent[0], (*below, file), parent[1]), own] if parent else [own]


def _parent(file: Path, document: Table) -> tuple[Path, Origin] | None:
    """Give the file that a document inherits from, with the place that says so."""
    node = document.get(INHERIT)
    if node is None or (isinstance(node, Leaf) and node.value is None):
        return None
    value, place = plain(node), node.origin
    if not isinstance(value, str):
        raise ManifestError(f"{place}: {INHERIT} must be a string path, not {kind_in_words(value)}.")
    if not value.strip():
        raise ManifestError(f"{place}: {INHERIT} must be a non-empty path.")
    target = Path(os.path.realpath(file.parent / value))
    if os.path.isdir(target):
        raise ManifestError(f"{place}: {INHERIT} must name a file, and {value!r} is the folder {target}.")
    try:
        found = present(target)
    except ManifestError as error:
        raise ManifestError(f"{place}: cannot resolve {INHERIT} target {value!r}: {error}") from None
    if not found:
        raise ManifestError(f"{place}: cannot resolve {INHERIT} target {value!r}: there is no {target}.")
    return target, place


def _without_parent(document: Table) -> Table:
    entries = {key: node for key, node in document.entries.items() if key != INHERIT}
    return Table(MappingProxyType(entries), document.origin)
