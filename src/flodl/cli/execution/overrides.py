"""Options that a manifest sets more than once or under keys that no command line can express."""

from __future__ import annotations

from collections.abc import Iterator

from flodl.cli.args.schema import Schema
from flodl.cli.manifest.document import Node, Table, dotted, plain
from flodl.cli.manifest.loader import Manifest

from .settings import first_origin, options_set_by


def contradictions(table: Table, schema: Schema | None, *, where: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield an error for every option that one file sets twice in a manifest or a preset.

    Two spellings of a name in one section are a duplicate key. In two sections, the values may be equal.
    """
    seen: dict[str, tuple[tuple[str, ...], Node]] = {}
    for flag, path, node in options_set_by(table, schema):
        known = seen.setdefault(flag, (path, node))
        if known[1] is node or known[1].origin.file != node.origin.file:
            continue
        is_duplicate = path[0] == known[0][0]
        values = plain(node), plain(known[1])
        if is_duplicate or (None not in values and values[0] != values[1]):
            yield (
                f"{node.origin}: {dotted((*where, *path))}: {dotted((*where, *known[0]))} in line "
                f"{known[1].origin.line} sets the same option, --{flag}. Keep one of them."
            )


def key_problems(table: Table, schema: Schema | None, *, where: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield an error for every option name and map key that would be read differently on a command line."""
    for _flag, path, node in options_set_by(table, schema):
        if any("=" in key for key in path):
            yield (
                f"{node.origin}: {dotted((*where, *path))}: the name of an option cannot contain `=`. On the "
                "command line, its value begins there."
            )
        for key, value in node.entries.items() if isinstance(node, Table) else ():
            if "=" in key or key != key.strip() or not key:
                yield (
                    f"{value.origin}: {dotted((*where, *path))}: the key {key!r} cannot be passed to the "
                    "program, which reads key=value: a key must not be empty, contain `=`, or begin or end "
                    "with a space. Rename it."
                )


def overridden_notes(manifest: Manifest, name: str, preset: Table, schema: Schema | None) -> list[str]:
    """Return a note for every value of an overlay that a preset in the base manifest overrides."""
    around = {flag: (path, node) for flag, path, node in options_set_by(manifest.document, schema)}
    inside = {
        flag: (path, node)
        for flag, path, node in options_set_by(preset, schema)
        if flag in around and plain(node) is not None and plain(around[flag][1]) is not None
    }
    notes = []
    for flag, (preset_path, below) in inside.items():
        path, above = around[flag]
        overlay_origin, preset_origin = first_origin(above), first_origin(below)
        overlay_files = manifest.overlay_files
        if overlay_origin.file in overlay_files and preset_origin.file not in overlay_files:
            command = ("commands", name)
            notes.append(
                f"{overlay_origin.relative_to(manifest.project)}: {dotted(path)} is overridden by "
                f"{dotted(command)} at {preset_origin.relative_to(manifest.project)}. "
                f"To change it, set {dotted((*command, *preset_path))}."
            )
    return notes
