"""Find the command that the words of a command line name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from flodl.core.errors import ManifestError
from flodl.core.files import expand_user
from flodl.core.formats import shell_word
from flodl.core.paths import suggestion

from .command_kind import Kind, kind_of
from .discovery import manifest_in
from .document import Node, Table
from .loader import Manifest, load

Action = Literal["run", "entry", "help", "refresh"]


@dataclass(frozen=True)
class Target:
    """The command that a command line names: its manifest, its definition, and the remaining words."""

    manifest: Manifest
    command_path: tuple[str, ...]  # the names that lead here
    tail: tuple[str, ...]  # the words after them
    kind: Kind
    command: str = ""  # empty: the entry of the manifest itself
    node: Node | None = None
    parents: tuple[tuple[Manifest, str], ...] = ()  # the folder commands on the way, with their manifests

    @property
    def title(self) -> str:
        return " ".join(("fdl", *map(shell_word, self.command_path)))

    @property
    def spec(self) -> Table:
        """The map of the command, or an empty one."""
        empty = Table({}, self.manifest.document.origin)
        return self.node if isinstance(self.node, Table) else empty

    def before_dashes(self) -> tuple[str, ...]:
        return self.tail[: self.tail.index("--")] if "--" in self.tail else self.tail


def resolve_target(manifest: Manifest, name: str, tail: tuple[str, ...]) -> Target:
    """Look up a command, then as many of the following words as name commands of inner manifests."""
    target = _descend(Target(manifest, (), (name, *tail), Kind.PATH))
    while target.kind is Kind.PATH and target.tail and target.tail[0] in target.manifest.commands.entries:
        target = _descend(target)
    return target


def _descend(target: Target) -> Target:
    """Look up the first remaining word as the name of a command."""
    name, *rest = target.tail
    commands, at_root = target.manifest.commands, not target.command_path
    if name not in commands.entries:
        from .model import ManifestModel
        from .validation import decode

        decode(ManifestModel, target.manifest.document)  # a mistake in the manifest may hide the command
        hint = suggestion(name, commands.entries, known_as="commands")
        raise ManifestError(f"there is no command {name!r} in {target.manifest.path}. {hint}")
    node = commands.entries[name]
    kind = kind_of(name, node)
    found = replace(
        target,
        command_path=(*target.command_path, name),
        tail=tuple(rest),
        kind=kind,
        command=name,
        node=node,
    )
    if kind is Kind.PATH:
        parents = (*target.parents, (target.manifest, name))
        child = load_child(target.manifest, name, node)
        return replace(found, manifest=child, command="", node=None, parents=parents)
    if kind is Kind.PRESET and at_root and target.manifest.document.value("entry") is None:
        raise ManifestError(
            f"{node.origin}: command `{name}`: a preset needs an `entry:`, but {target.manifest.path} has "
            "none. Add `entry:` with the program that takes these values, or give the command a `run:`."
        )
    return found


def load_child(manifest: Manifest, name: str, node: Node) -> Manifest:
    """Load the manifest of the folder that a command names, by `path:` or by its own name."""
    folder = manifest.folder / child_folder(name, node)
    path = manifest_in(folder)
    if path is None:
        if isinstance(node, Table):
            # The command may look like a folder only because of an unknown key.
            from .model import CommandModel
            from .validation import decode

            decode(CommandModel, node, where=("commands", name))
        advice = "Create one with an `entry:`, or give the command a `run:`."
        if manifest.document.value("entry") is not None and child_folder(name, node) == Path(name):
            advice = (
                "A command without values stands for a folder. If it is to start the `entry:` with its "
                "defaults, add `training: {}`; else create that file, or give the command a `run:`."
            )
        raise ManifestError(f"{node.origin}: command `{name}`: no fdl.yml found in {folder}. {advice}")
    return load(path, overlay=manifest.overlay, source=manifest.overlay_source, project=manifest.project)


def child_folder(name: str, node: Node) -> Path:
    path = node.value("path") if isinstance(node, Table) else None
    return expand_user(path) if isinstance(path, str) else Path(name)


def requested_action(target: Target) -> Action:
    """Return what the command line asks for. `--help` and `--refresh-schema` count only before `--`."""
    words = target.before_dashes()
    if "-h" in words or "--help" in words:
        return "help"
    if target.kind is Kind.RUN:
        return "run"
    if "--refresh-schema" in words:
        return "refresh"
    document = target.manifest.document
    has_entry = target.kind is not Kind.PATH or document.value("entry") is not None
    if not has_entry and target.manifest.commands.entries and not target.tail:
        return "help"
    return "entry"
