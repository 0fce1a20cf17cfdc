"""From the words of a command line to the one thing that they name. Nothing is started here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from flodl.core.errors import ManifestError
from flodl.core.paths import suggestion

from .command_kind import Kind, kind_of
from .discovery import manifest_in
from .document import Node, Table
from .loader import Manifest, load

Action = Literal["run", "entry", "help", "refresh"]


@dataclass(frozen=True)
class Target:
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


def resolve_target(manifest: Manifest, name: str, tail: tuple[str, ...]) -> Target:
    """Follow a name, and then as many words as name commands of inner manifests."""
    target = step(Target(manifest, (), (name, *tail), Kind.PATH))
    while target.kind is Kind.PATH and target.tail and target.tail[0] in target.manifest.commands.entries:
        target = step(target)
    return target


def step(target: Target) -> Target:
    """Take the first word as the name of a command."""
    name, *rest = target.tail
    commands, at_root = target.manifest.commands, not target.trail
    if name not in commands.entries:
        from .model import ManifestModel
        from .validation import decode

        decode(ManifestModel, target.manifest.document)  # what is wrong there may hide the command
        hint = suggestion(name, commands.entries, known_as="commands")
        raise ManifestError(f"there is no command {name!r} in {target.manifest.path}. {hint}")
    node = commands.entries[name]
    kind = kind_of(name, node)
    onward = replace(
        target, trail=(*target.trail, name), tail=tuple(rest), kind=kind, command=name, node=node
    )
    if kind is Kind.PATH:
        passed = (*target.passed, (target.manifest, name))
        child = load_child(target.manifest, name, node)
        return replace(onward, manifest=child, command="", node=None, passed=passed)
    if kind is Kind.PRESET and at_root and target.manifest.document.value("entry") is None:
        raise ManifestError(
            f"{node.origin}: command `{name}`: it has values for an `entry:`, and {target.manifest.path} has "
            "none. Write `entry:` there, the program that takes them; or give the command a `run:`."
        )
    return onward


def load_child(manifest: Manifest, name: str, node: Node) -> Manifest:
    """Read the manifest of the folder that a command names, or of the folder called like it."""
    folder = manifest.folder / folder_name(name, node)
    found = manifest_in(folder)
    if found is None:
        if isinstance(node, Table):
            # A key that is not known may be why the command looks like a folder.
            from .model import CommandModel
            from .validation import decode

            decode(CommandModel, node, where=("commands", name))
        raise ManifestError(
            f"{node.origin}: command `{name}`: no fdl.yml found in {folder}. "
            "Write one with an `entry:`, or give the command a `run:`."
        )
    return load(found, overlay=manifest.overlay, source=manifest.overlay_source, project=manifest.project)


def folder_name(name: str, node: Node) -> Path:
    path = node.value("path") if isinstance(node, Table) else None
    return Path(path if isinstance(path, str) else name)


def requested_action(target: Target) -> Action:
    """Say what to do at a target: help and refreshing count only before `--`."""
    words = target.before_dashes()
    if "-h" in words or "--help" in words:
        return "help"
    if target.kind is Kind.RUN:
        return "run"
    if "--refresh-schema" in words:
        return "refresh"
    document = target.manifest.document
    leads_on = (
        target.kind is Kind.PATH and document.value("entry") is None and target.manifest.commands.entries
    )
    return "help" if leads_on and not target.tail else "entry"
