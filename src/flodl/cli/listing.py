"""What the help of `fdl` says about a project: its commands in a line each, and its environments."""

from __future__ import annotations

import click

from flodl.core.errors import FlodlError

from .manifest.command_kind import Kind, kind_or_none
from .manifest.document import Table
from .manifest.loader import Manifest
from .manifest.lookup import load_child


def summary_of(manifest: Manifest, name: str) -> str:
    """Give one line about a command: its description, that of its manifest, or what it runs."""
    node = manifest.commands.entries[name]
    words = node.value("description") if isinstance(node, Table) else None
    if isinstance(words, str) and words.strip():
        return words.strip().splitlines()[0]
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
    """Add what the project has to the help of `fdl` itself."""
    title = manifest.describe() or str(manifest.folder)
    rows = [(name, summary_of(manifest, name)) for name in sorted(manifest.commands.entries)]
    if rows:
        with formatter.section(f"Commands of {manifest.path.name} ({title})"):
            formatter.write_dl(rows)
    if overlays:
        with formatter.section("Environments"):
            formatter.write_dl([(name, "(active)" if name == manifest.overlay else "") for name in overlays])
    formatter.write_paragraph()
    formatter.write_text("`fdl COMMAND --help` says more; `fdl config show` gives every value and its place.")
