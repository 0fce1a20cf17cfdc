"""From a manifest and the name of an overlay to one document: inheritance first, then the overlay."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from flodl.core.errors import ManifestError
from flodl.core.paths import suggestion

from .document import Leaf, Table, plain
from .finding import is_file, overlay_file, overlays_of
from .merging import Deletion, deletions, merge_all
from .reading import read_document

INHERIT = "inherit-from"


@dataclass(frozen=True)
class Manifest:
    """A document with everything laid over it."""

    path: Path
    document: Table
    project: Path  # the folder of the project's own manifest; origins are shown as seen from it
    overlay: str = ""
    overlay_source: str = ""
    deleted: tuple[Deletion, ...] = ()  # what a null of the manifest takes away from what it inherits

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
    layers = _chain(path.resolve(), ())
    deleted = tuple(deletions(table for _file, table in layers)) if len(layers) > 1 else ()
    over = overlay_file(path, overlay) if overlay else None
    if over:
        layers += _chain(over.resolve(), ())
    elif overlay and project is None:
        known = suggestion(overlay, overlays_of(path), known_as="environments")
        raise ManifestError(
            f"{source or 'the command line'} asks for the environment {overlay!r}, and there is no "
            f"{path.parent / f'fdl.{overlay}.yml'}. {known}"
        )
    merged = merge_all(dict(layers).values())  # of a file that stands there twice, the first place counts
    return Manifest(path, merged, project or path.parent.resolve(), overlay, source, deleted)


def _chain(file: Path, below: tuple[Path, ...]) -> list[tuple[Path, Table]]:
    """Give the documents that one inherits from, the oldest first, and itself."""
    if file in below:
        cycle = " → ".join(map(str, (*below[below.index(file) :], file)))
        raise ManifestError(f"{INHERIT} goes in a cycle: {cycle}. Take one of them out.")
    document = read_document(file)
    parent = _parent(file, document)
    own = (file, _without_parent(document))
    return [*_chain(parent, (*below, file)), own] if parent else [own]


def _parent(file: Path, document: Table) -> Path | None:
    node = document.get(INHERIT)
    if node is None or (isinstance(node, Leaf) and node.value is None):
        return None
    value, place = plain(node), node.origin
    if not isinstance(value, str):
        raise ManifestError(f"{place}: {INHERIT} must be a string path, not a {type(value).__name__}.")
    if not value.strip():
        raise ManifestError(f"{place}: {INHERIT} must be a non-empty path.")
    target = (file.parent / value).resolve()
    if target.is_dir():
        raise ManifestError(f"{place}: {INHERIT} must name a file, and {value!r} is the folder {target}.")
    if not is_file(target):
        raise ManifestError(f"{place}: cannot resolve {INHERIT} target {value!r}: there is no {target}.")
    return target


def _without_parent(document: Table) -> Table:
    entries = {key: node for key, node in document.entries.items() if key != INHERIT}
    return Table(MappingProxyType(entries), document.origin)
