"""Load a manifest: apply `inherit-from` first, then the overlay."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from flodl.core.errors import ManifestError
from flodl.core.files import expand_user
from flodl.core.paths import suggestion

from .discovery import exists, overlay_file, overlay_names
from .document import Leaf, Origin, Table, describe_type, plain
from .merge import Deletion, deletions, merge_all
from .parser import read_document

INHERIT = "inherit-from"
MAX_PARENTS = 32


@dataclass(frozen=True)
class Manifest:
    """A document with its parents and its overlay applied."""

    path: Path
    document: Table
    project: Path  # the folder of the top manifest; origins are shown relative to it
    overlay: str = ""
    overlay_source: str = ""
    deleted: tuple[Deletion, ...] = ()  # what nulls delete from lower layers
    overlay_files: frozenset[Path] = frozenset()  # the overlay and the files that only it inherits from

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def commands(self) -> Table:
        return self.document.table("commands")

    def describe(self) -> str:
        """Return the description, or an empty string. This never raises, because help must always work."""
        text = self.document.value("description")
        return text.strip() if isinstance(text, str) else ""


def load(path: Path, *, overlay: str = "", source: str = "", project: Path | None = None) -> Manifest:
    """Load a manifest and an overlay, each with the files that it inherits from.

    The overlay must exist for the top manifest of the project, but not for the manifests of its commands.
    """
    layers = _chain(path.resolve())
    own = {file for file, _table in layers}
    over = overlay_file(path, overlay) if overlay else None
    if over:
        layers += _chain(over.resolve())
    elif overlay and project is None:
        hint = suggestion(overlay, overlay_names(path), known_as="environments")
        raise ManifestError(
            f"{source or 'the command line'} asks for the environment {overlay!r}, but there is no "
            f"{path.parent / f'fdl.{overlay}.yml'}. {hint}"
        )
    tables = dict(layers)  # a file that occurs twice keeps its first position
    merged = merge_all(tables.values())
    deleted = tuple(deletions(tables.values()))
    only_overlay = frozenset(tables.keys() - own)
    return Manifest(path, merged, project or path.parent.resolve(), overlay, source, deleted, only_overlay)


def _chain(file: Path) -> list[tuple[Path, Table]]:
    """Return the documents that a file inherits from, oldest first, and its own."""
    found: dict[Path, Table] = {}
    parent: tuple[Path, Origin] | None = (file, Origin(file, 1))
    while parent is not None:
        path, origin = parent
        if path in found:
            names = [*found, path]
            cycle = " → ".join(map(str, names[names.index(path) :]))
            raise ManifestError(f"{origin}: {INHERIT} forms a cycle: {cycle}. Remove one of them.")
        if len(found) >= MAX_PARENTS:
            raise ManifestError(
                f"{origin}: {INHERIT} continues through more than {MAX_PARENTS} files. Combine some of them."
            )
        document = read_document(path)
        found[path] = _without_parent(document)
        parent = _parent(path, document)
    return list(found.items())[::-1]


def _parent(file: Path, document: Table) -> tuple[Path, Origin] | None:
    """Return the file that a document inherits from, with the line that names it."""
    node = document.get(INHERIT)
    if node is None or (isinstance(node, Leaf) and node.value is None):
        return None
    value, origin = plain(node), node.origin
    if not isinstance(value, str):
        raise ManifestError(f"{origin}: {INHERIT} must be a string path, not {describe_type(value)}.")
    if not value.strip():
        raise ManifestError(f"{origin}: {INHERIT} must be a non-empty path.")
    target = Path(os.path.realpath(file.parent / expand_user(value)))
    if os.path.isdir(target):
        raise ManifestError(f"{origin}: {INHERIT} must name a file, but {value!r} is the folder {target}.")
    try:
        target_exists = exists(target)
    except ManifestError as error:
        raise ManifestError(f"{origin}: cannot resolve {INHERIT} target {value!r}: {error}") from None
    if not target_exists:
        raise ManifestError(f"{origin}: cannot resolve {INHERIT} target {value!r}: {target} does not exist.")
    return target, origin


def _without_parent(document: Table) -> Table:
    entries = {key: node for key, node in document.entries.items() if key != INHERIT}
    return Table(MappingProxyType(entries), document.origin)
