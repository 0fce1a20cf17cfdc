"""Check a whole project: a manifest, its overlays, and the manifests of its commands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flodl.cli.manifest.command_kind import Kind, kind_of, kind_or_none
from flodl.cli.manifest.discovery import manifest_in, manifests_in, overlay_files, overlay_names
from flodl.cli.manifest.document import Leaf, Table, dotted
from flodl.cli.manifest.loader import Manifest, load
from flodl.cli.manifest.lookup import child_folder, load_child
from flodl.cli.manifest.model import CommandModel, ManifestModel
from flodl.cli.manifest.validation import problems_in
from flodl.cli.sweep.space_checks import sweep_problems
from flodl.core.errors import ArgsError, FlodlError, ManifestError

from .entry_schema import inline_schema, load_schema
from .overrides import contradictions, key_problems, overridden_notes
from .settings import collect_settings
from .start_checks import Issue, entry_issues, name_issues, script_issues
from .value_checks import setting_problems

_MAX_FOLDERS = 64


@dataclass
class Findings:
    """Problems, and notes about things that are allowed. Each is listed once, in order."""

    problems: dict[str, None] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    # The problems with values that the entry does not accept.
    of_entry: set[str] = field(default_factory=set)

    def add(self, issues: Iterator[Issue]) -> None:
        """Add fatal issues as problems and the others as notes."""
        try:
            for issue in issues:
                (self.problems if issue.fatal else self.notes)[issue.message] = None
        except FlodlError as error:  # a compose file that cannot be read
            self.problems[str(error)] = None

    def drop_repeated(self) -> None:
        """Drop a problem of the entry with a value that the manifest does not allow either."""
        known = [one.split(": ", 2)[:2] for one in self.problems if one not in self.of_entry]
        for problem in self.of_entry.intersection(self.problems):
            origin, path = problem.split(": ", 2)[:2]
            if any(one[0] == origin and f".{one[-1]}".endswith(f".{path}") for one in known):
                del self.problems[problem]


def lint(
    path: Path, *, overlay: str = "", source: str = "", builtin: frozenset[str] = frozenset()
) -> Findings:
    """Check a manifest and everything below it. Without an overlay, check every overlay.

    `builtin` are the names of the built-in commands, which commands of the manifest replace.
    """
    findings = Findings()
    for name in [overlay] if overlay else ["", *overlay_names(path)]:
        try:
            manifest = load(path, overlay=name, source=source)
        except FlodlError as error:
            findings.problems[str(error)] = None
        else:
            _check_manifest(manifest, frozenset(), findings, builtin)
    findings.drop_repeated()
    return findings


def _check_manifest(
    manifest: Manifest, seen: frozenset[Path], findings: Findings, builtin: frozenset[str]
) -> None:
    findings.problems |= dict.fromkeys(problems_in(ManifestModel, manifest.document))
    findings.notes |= dict.fromkeys(_notes(manifest))
    findings.add(entry_issues(manifest))
    try:
        inline_schema(manifest)
    except ManifestError as error:
        findings.problems[str(error)] = None
    else:
        _check_settings(manifest, findings)
    for name in manifest.commands.entries:
        _check_command(manifest, name, seen | {manifest.path.resolve()}, findings, builtin)


def _notes(manifest: Manifest) -> list[str]:
    overlays = overlay_files(manifest.path, manifest.overlay) if manifest.overlay else []
    notes = [
        f"{other} is ignored, because {files[0].name} in the same folder takes precedence."
        for files in (manifests_in(manifest.folder), overlays)
        for other in files[1:]
    ]
    for path, origin, deleted in manifest.deleted:
        notes.append(f"{origin}: {dotted(path)}: the null deletes the value from {deleted}.")
    return notes


def _check_settings(manifest: Manifest, findings: Findings) -> None:
    """Check the settings of the entry and of each preset against the schema of the entry."""
    if manifest.document.value("entry") is None:
        return
    commands = manifest.commands.entries
    presets = {
        name: node
        for name, node in commands.items()
        if isinstance(node, Table) and kind_or_none(name, node) is Kind.PRESET
    }
    schema = load_schema(manifest)
    if _default_kind(manifest) is not Kind.RUN:
        findings.problems |= dict.fromkeys(
            f"{manifest.project}{os.sep}{problem}" for problem in sweep_problems(manifest, schema)
        )
    cases = [
        collect_settings(manifest.document, preset, schema, project=manifest.project)
        for preset in (None, *presets.values())
    ]
    for check in (contradictions, key_problems):
        findings.problems |= dict.fromkeys(check(manifest.document, schema))
    for name, node in presets.items():
        for check in (contradictions, key_problems):
            findings.problems |= dict.fromkeys(check(node, schema, where=("commands", name)))
        notes = overridden_notes(manifest, name, node, schema)
        findings.notes |= dict.fromkeys(f"{manifest.project}{os.sep}{note}" for note in notes)
    if schema:
        problems = dict.fromkeys(problem for case in cases for problem in setting_problems(schema, case))
        # These name their file relative to the project; all other messages have the full path.
        listed = [f"{manifest.project}{os.sep}{problem}" for problem in problems]
        findings.problems |= dict.fromkeys(listed)
        findings.of_entry.update(listed)
    elif any(cases):
        findings.notes[
            f"{manifest.path}: the values for its entry are not checked, because its schema is not known. "
            "`--refresh-schema` asks the entry and shows any error. You can also add a `schema:` here."
        ] = None


def _default_kind(manifest: Manifest) -> Kind | None:
    """Return the kind of the command that `fdl sweep` runs if none is named."""
    node = manifest.commands.entries.get("run")
    return kind_or_none("run", node) if node is not None else None


def _check_command(
    manifest: Manifest, name: str, seen: frozenset[Path], findings: Findings, builtin: frozenset[str]
) -> None:
    node = manifest.commands.entries[name]
    problems = problems_in(CommandModel, node, where=("commands", name)) if isinstance(node, Table) else []
    findings.problems |= dict.fromkeys(problems)
    is_top_level = not seen - {manifest.path.resolve()}
    findings.add(name_issues(name, node, builtin if is_top_level else frozenset()))
    try:
        kind = kind_of(name, node)
        if kind is Kind.PRESET and manifest.document.value("entry") is None:
            raise ManifestError(
                f"{node.origin}: command `{name}`: a preset needs an `entry:`, but {manifest.path} has none."
            )
        if kind is Kind.RUN and isinstance(node, Table):
            findings.add(script_issues(manifest, name, node))
        if kind is not Kind.PATH:
            return
        if problems and manifest_in(manifest.folder / child_folder(name, node)) is None:
            return  # it looks like a folder only because of the wrong key
        child = load_child(manifest, name, node)
    except (ManifestError, ArgsError) as error:
        hint = ""
        if isinstance(node, Leaf) and node.value is None and node.origin.file != manifest.path.resolve():
            hint = " A null here means a folder, because there is nothing to delete."
        findings.problems[f"{error}{hint}"] = None
    else:
        if len(seen) > _MAX_FOLDERS:
            findings.problems[f"{node.origin}: more than {_MAX_FOLDERS} folders contain one another."] = None
        elif child.path.resolve() not in seen:
            _check_manifest(child, seen, findings, builtin)
