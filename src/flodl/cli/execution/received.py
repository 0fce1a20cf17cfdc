"""A manifest with its numbers as the program receives them."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from flodl.cli.args.schema import Schema
from flodl.cli.manifest.document import Leaf, Node, Table
from flodl.cli.manifest.loader import Manifest
from flodl.cli.manifest.option_names import option_name
from flodl.core.errors import ManifestError

from .entry_files import fingerprint
from .entry_schema import cache_file, inline_schema, read_cache
from .settings import Setting


def as_received(manifest: Manifest) -> Table:
    """Return the document with the text of only those numbers that are passed to the program as written.

    `tag: 007` is passed as `007` to an option that takes text, and as `7` to one that takes an integer. The
    entry is not asked for its options: without a cached schema they are unknown.
    """
    return _table(manifest.document, _known_schema(manifest), ())


def _known_schema(manifest: Manifest) -> Schema | None:
    try:
        return read_cache(cache_file(manifest), fingerprint(manifest)) or inline_schema(manifest)
    except ManifestError:  # a mistake in `schema:`, which lint reports
        return None


def _table(table: Table, schema: Schema | None, path: tuple[str, ...]) -> Table:
    entries = {key: _node(node, schema, (*path, key)) for key, node in table.entries.items()}
    return Table(MappingProxyType(entries), table.origin)


def _node(node: Node, schema: Schema | None, path: tuple[str, ...]) -> Node:
    if isinstance(node, Table):
        return _table(node, schema, path)
    option_path = _option_path(path)
    if not option_path:
        return replace(node, written=None)
    options = schema.options if schema else {}
    flags = [option_name(".".join(option_path[:end])) for end in range(1, len(option_path) + 1)]
    if any(flag in options and options[flag].is_dict for flag in flags):
        return replace(node, written=None)
    option = options.get(flags[-1])
    setting = Setting(flags[-1], node.value, "", "", node.written)
    return Leaf(node.value, node.origin, setting.written_for(option))


def _option_path(path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the path of a value in `options:`, or in a map in `training:`; empty for all other values."""
    inner = path[2:] if path[0] == "commands" else path
    if inner[:1] == ("options",) and path[0] == "commands":
        return inner[1:]
    return inner[1:] if inner[:1] == ("training",) and len(inner) > 2 else ()
