"""The part of `fdl --help` about the project: one line per command, and the environments."""

from __future__ import annotations

import click

from flodl.core.errors import FlodlError

from .manifest.command_kind import Kind, kind_or_none
from .manifest.document import Table
from .manifest.loader import Manifest
from .manifest.lookup import load_child


def summary_of(manifest: Manifest, name: str) -> str:
    """Return one line about a command: its description, that of its manifest, or what it runs."""
    node = manifest.commands.entries[name]
    text = node.value("description") if isinstance(node, Table) else None
    if isinstance(text, str) and text.strip():
        return text.strip().splitlines()[0]
    kind = kind_or_none(name, node)
    if kind is Kind.RUN and isinstance(node, Table):
        return str(node.value("run")).strip().splitlines()[0]
    if kind is Kind.PRESET:
        return "(preset)"
    try:
        return load_child(manifest, name, node).describe() or "(sub-command)"
    except FlodlError:
        return "(sub-command)"


def write_project(formatter: click.HelpFormatter, manifest: Manifest, overlays: list[str]) -> None:
    """Write the commands and environments of the project to the help of `fdl`."""
    title = manifest.describe() or str(manifest.folder)
    rows = [(name, summary_of(manifest, name)) for name in sorted(manifest.commands.entries)]
    if rows:
        with formatter.section(f"Commands of {manifest.path.name} ({title})"):
            formatter.write_dl(rows)
    if overlays:
        with formatter.section("Environments"):
            formatter.write_dl([(name, "(active)" if name == manifest.overlay else "") for name in overlays])
    formatter.write_paragraph()
    formatter.write_text(
        "`fdl COMMAND --help` explains a command; `fdl config show` lists every value and its origin."
    )
