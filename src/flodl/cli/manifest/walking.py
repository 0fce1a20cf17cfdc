"""From the words of a command line to the one thing that they name. Nothing is started here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from flodl.core.errors import ManifestError
from flodl.core.paths import suggestion

from .document import Node, Table
from .finding import manifest_in
from .kinds import Kind, kind_of
from .layers import Manifest, load

Action = Literal["run", "entry", "help", "refresh"]


@dataclass(frozen=True)
class Place:
    """Where the words lead: the manifest, the command there, and the words that are left."""

    manifest: Manifest
    trail: tuple[str, ...]
    tail: tuple[str, ...]
    kind: Kind
    command: str = ""  # empty: the entry of the manifest itself
    node: Node | None = None
    passed: tuple[tuple[Manifest, str], ...] = ()  # the commands that led here, with their manifests

    @property
    def title(self) -> str:
        return " ".join(("fdl", *self.trail))

    @property
    def spec(self) -> Table:
        """The map of the command; an empty one where nothing is written."""
        empty = Table({}, self.manifest.document.origin)
        return self.node if isinstance(self.node, Table) else empty

    def before_dashes(self) -> tuple[str, ...]:
        return self.tail[: self.tail.index("--")] if "--" in self.tail else self.tail


def walk(manifest: Manifest, name: str, tail: tuple[str, ...]) -> Place:
    """Follow a name, and then as many words as name commands of inner manifests."""
    place = step(Place(manifest, (), (name, *tail), Kind.PATH))
    while place.kind is Kind.PATH and place.tail and place.tail[0] in place.manifest.commands.entries:
        place = step(place)
    return place


def step(place: Place) -> Place:
    """Take the first word as the name of a command."""
    name, *rest = place.tail
    commands, at_root = place.manifest.commands, not place.trail
    if name not in commands.entries:
        from .model import Document, read_as

        read_as(Document, place.manifest.document)  # what is wrong there may hide the command
        hint = suggestion(name, commands.entries, known_as="commands")
        raise ManifestError(f"there is no command {name!r} in {place.manifest.path}. {hint}")
    node = commands.entries[name]
    kind = kind_of(name, node)
    onward = replace(place, trail=(*place.trail, name), tail=tuple(rest), kind=kind, command=name, node=node)
    if kind is Kind.PATH:
        passed = (*place.passed, (place.manifest, name))
        child = child_of(place.manifest, name, node)
        return replace(onward, manifest=child, command="", node=None, passed=passed)
    if kind is Kind.PRESET and at_root and place.manifest.document.value("entry") is None:
        raise ManifestError(
            f"{node.origin}: command `{name}`: it has values for an `entry:`, and {place.manifest.path} has "
            "none. Write `entry:` there, the program that takes them; or give the command a `run:`."
        )
    return onward


def child_of(manifest: Manifest, name: str, node: Node) -> Manifest:
    """Read the manifest of the folder that a command names, or of the folder called like it."""
    folder = manifest.folder / folder_name(name, node)
    found = manifest_in(folder)
    if found is None:
        if isinstance(node, Table):
            # A key that is not known may be why the command looks like a folder.
            from .model import Command, read_as

            read_as(Command, node, where=("commands", name))
        raise ManifestError(
            f"{node.origin}: command `{name}`: no fdl.yml found in {folder}. "
            "Write one with an `entry:`, or give the command a `run:`."
        )
    return load(found, overlay=manifest.overlay, source=manifest.overlay_source, project=manifest.project)


def folder_name(name: str, node: Node) -> Path:
    path = node.value("path") if isinstance(node, Table) else None
    return Path(path if isinstance(path, str) else name)


def action_of(place: Place) -> Action:
    """Say what to do at a place: help and refreshing count only before `--`."""
    words = place.before_dashes()
    if "-h" in words or "--help" in words:
        return "help"
    if place.kind is Kind.RUN:
        return "run"
    if "--refresh-schema" in words:
        return "refresh"
    document = place.manifest.document
    leads_on = place.kind is Kind.PATH and document.value("entry") is None and place.manifest.commands.entries
    return "help" if leads_on and not place.tail else "entry"
