"""Everything that is wrong with a manifest, its overlays and the manifests of its commands, at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flodl.core.errors import ArgsError, FlodlError, ManifestError

from .document import Table
from .executing import check_settings
from .finding import overlays_of
from .kinds import Kind, kind_of
from .layers import Manifest, load
from .model import Command, Document, read_as
from .schemas import inline_schema, schema_of
from .settings import settings_of
from .walking import child_of


def lint(path: Path, *, overlay: str = "") -> list[str]:
    """Give what is wrong, one line each; with no overlay named, every one of them is tried."""
    problems: dict[str, None] = {}
    for name in [overlay] if overlay else ["", *overlays_of(path)]:
        try:
            manifest = load(path, overlay=name)
        except FlodlError as error:
            problems[str(error)] = None
        else:
            problems |= dict.fromkeys(_problems(manifest, frozenset()))
    return list(problems)


def _problems(manifest: Manifest, seen: frozenset[Path]) -> Iterator[str]:
    document = manifest.document
    try:
        read_as(Document, document)
        inline_schema(manifest)
    except ManifestError as error:
        yield str(error)
    for name in manifest.commands.entries:
        yield from _problems_of_command(manifest, name, seen | {manifest.path.resolve()})


def _problems_of_command(manifest: Manifest, name: str, seen: frozenset[Path]) -> Iterator[str]:
    node = manifest.commands.entries[name]
    try:
        kind = kind_of(name, node)
        if isinstance(node, Table):
            read_as(Command, node, where=("commands", name))
        if kind is Kind.PATH:
            child = child_of(manifest, name, node)
            if child.path.resolve() not in seen:
                yield from _problems(child, seen)
        elif kind is Kind.PRESET:
            _check(manifest, name, node)
    except (ManifestError, ArgsError) as error:
        yield str(error)


def _check(manifest: Manifest, name: str, node: object) -> None:
    if manifest.document.value("entry") is None:
        raise ManifestError(
            f"{manifest.path}: command `{name}`: a preset needs an `entry:` in the same file."
        )
    schema = schema_of(manifest, probing=False)
    if schema and isinstance(node, Table):
        check_settings(schema, settings_of(manifest.document, node, project=manifest.project))
