"""Everything that is wrong with a manifest, its overlays and the manifests of its commands, at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flodl.cli.commands import SUMMARIES
from flodl.cli.manifest.command_kind import Kind, kind_of, kind_or_none
from flodl.cli.manifest.discovery import manifest_in, manifests_in, overlay_files, overlay_names
from flodl.cli.manifest.document import Leaf, Table, dotted
from flodl.cli.manifest.loader import Manifest, load
from flodl.cli.manifest.lookup import child_folder, load_child
from flodl.cli.manifest.model import CommandModel, ManifestModel
from flodl.cli.manifest.validation import problems_in
from flodl.core.errors import ArgsError, FlodlError, ManifestError

from .entry_schema import inline_schema, load_schema
from .settings import collect_settings, covered
from .start_checks import Doubt, doubts_about_entry, doubts_about_name, doubts_about_script
from .value_checks import problems_of

# `fdl run` alone is the project's own command of that name.
_TAKEN = frozenset(SUMMARIES) - {"run"}


@dataclass
class Findings:
    """What is wrong, and what should be known although it is allowed; each once, in order."""

    problems: dict[str, None] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    def add(self, doubts: Iterator[Doubt]) -> None:
        """Sort what may not start: problems if it never will, else notes."""
        try:
            for doubt in doubts:
                (self.problems if doubt.certain else self.notes)[doubt.words] = None
        except FlodlError as error:  # of a compose file that cannot be read
            self.problems[str(error)] = None


def lint(path: Path, *, overlay: str = "", source: str = "") -> Findings:
    """Look at a manifest and all below it; with no overlay named, every one of them is tried."""
    found = Findings()
    for name in [overlay] if overlay else ["", *overlay_names(path)]:
        try:
            manifest = load(path, overlay=name, source=source)
        except FlodlError as error:
            found.problems[str(error)] = None
        else:
            _look_at(manifest, frozenset(), found)
    return found


def _look_at(manifest: Manifest, seen: frozenset[Path], found: Findings) -> None:
    found.problems |= dict.fromkeys(problems_in(ManifestModel, manifest.document))
    found.notes |= dict.fromkeys(_notes_about(manifest))
    found.add(doubts_about_entry(manifest))
    try:
        inline_schema(manifest)
    except ManifestError as error:
        found.problems[str(error)] = None
    else:
        _hold_to_schema(manifest, found)
    for name in manifest.commands.entries:
        _look_at_command(manifest, name, seen | {manifest.path.resolve()}, found)


def _notes_about(manifest: Manifest) -> list[str]:
    overlays = overlay_files(manifest.path, manifest.overlay) if manifest.overlay else []
    notes = [
        f"{other} does not count: {files[0].name} beside it comes first."
        for files in (manifests_in(manifest.folder), overlays)
        for other in files[1:]
    ]
    for name, node in manifest.commands.entries.items():
        if isinstance(node, Table):
            notes += [f"{manifest.project}{os.sep}{note}" for note in covered(manifest, name, node)]
    for path, place, below in manifest.deleted:
        notes.append(f"{place}: {dotted(path)}: the null deletes what stands in {below}.")
    return notes


def _hold_to_schema(manifest: Manifest, found: Findings) -> None:
    """Hold the values of the entry, and those of each preset, to what the entry takes."""
    if manifest.document.value("entry") is None:
        return
    commands = manifest.commands.entries
    presets = [node for name, node in commands.items() if kind_or_none(name, node) is Kind.PRESET]
    tables = [None, *(node for node in presets if isinstance(node, Table))]
    cases = [collect_settings(manifest.document, preset, project=manifest.project) for preset in tables]
    schema = load_schema(manifest)
    if schema:
        wrong = dict.fromkeys(problem for case in cases for problem in problems_of(schema, case))
        # They name their file as seen from the project; everything else here has the whole path.
        found.problems |= {f"{manifest.project}{os.sep}{problem}": None for problem in wrong}
    elif any(cases):
        found.notes[
            f"{manifest.path}: the values for its entry are not checked: its schema is not known. "
            "`--refresh-schema` asks the entry and says what is wrong; a `schema:` can stand in for it."
        ] = None


def _look_at_command(manifest: Manifest, name: str, seen: frozenset[Path], found: Findings) -> None:
    node = manifest.commands.entries[name]
    unknown = problems_in(CommandModel, node, where=("commands", name)) if isinstance(node, Table) else []
    found.problems |= dict.fromkeys(unknown)
    found.add(doubts_about_name(name, node, _TAKEN if not seen - {manifest.path.resolve()} else frozenset()))
    try:
        kind = kind_of(name, node)
        if kind is Kind.PRESET and manifest.document.value("entry") is None:
            place = f"{node.origin}: command `{name}`"
            raise ManifestError(f"{place}: a preset needs an `entry:` in {manifest.path}, and there is none.")
        if kind is Kind.RUN and isinstance(node, Table):
            found.add(doubts_about_script(manifest, name, node))
        if kind is not Kind.PATH:
            return
        if unknown and manifest_in(manifest.folder / child_folder(name, node)) is None:
            return  # the key that is wrong is why it looks like a folder
        child = load_child(manifest, name, node)
    except (ManifestError, ArgsError) as error:
        hint = ""
        if isinstance(node, Leaf) and node.value is None and node.origin.file != manifest.path.resolve():
            hint = " Written so it is a folder; there was nothing for the null to delete."
        found.problems[f"{error}{hint}"] = None
    else:
        if child.path.resolve() not in seen:
            _look_at(child, seen, found)
