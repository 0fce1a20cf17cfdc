"""Merge documents: inheritance and overlays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial, reduce
from types import MappingProxyType

from .document import Leaf, Node, Origin, Table
from .option_names import has_option_names, option_name, without_options_of


class _Deleted:
    """Marks a key that a null deleted, with the origin of the deleted value, until all layers are merged."""

    def __init__(self, deleted: Origin) -> None:
        self.deleted = deleted


Deletion = tuple[tuple[str, ...], Origin, Origin]  # path, origin of the null, origin of the deleted value


def merge(lower: Table, upper: Table) -> Table:
    """Merge an upper map into a lower one.

    Maps are merged key by key. A list or a scalar replaces the old value. Null deletes the key; if there is
    nothing to delete, it stays null. Keys of the upper map move to the end, in its order. Names of options
    are the same with `_` and with `-`.
    """
    return merge_all([lower, upper])


def merge_all(layers: Iterable[Table], *, path: tuple[str, ...] = ()) -> Table:
    """Merge one or more layers, the lowest first. `path` is where the maps are in a manifest."""
    return _without_deleted(reduce(partial(_merge_two, path=path), layers))


def deletions(layers: Iterable[Table]) -> list[Deletion]:
    """Return everything that a null deletes."""
    return list(_deletions(reduce(_merge_two, layers), ()))


def _merge_two(lower: Table, upper: Table, path: tuple[str, ...] = ()) -> Table:
    if len(path) == 2 and path[0] == "commands":
        lower = without_options_of(lower, upper)
    name_of = option_name if has_option_names(path) else str
    replaced = {name_of(key) for key in upper.entries}
    entries: dict[str, Node] = {
        key: node for key, node in lower.entries.items() if name_of(key) not in replaced
    }
    lower_by_name = {name_of(key): node for key, node in lower.entries.items()}
    for key, above in upper.entries.items():
        below = lower_by_name.get(name_of(key))
        if isinstance(above, Leaf) and above.value is None and below is not None:
            already_deleted = isinstance(below, Leaf) and isinstance(below.value, _Deleted)
            entries[key] = below if already_deleted else Leaf(_Deleted(below.origin), above.origin)
        elif isinstance(above, Table) and isinstance(below, Table):
            entries[key] = _merge_two(below, above, (*path, key))
        else:
            entries[key] = above
    return Table(MappingProxyType(entries), upper.origin)


def _without_deleted(table: Table) -> Table:
    """Drop deleted keys, and maps that are empty only because of deletions."""
    entries: dict[str, Node] = {}
    for key, node in table.entries.items():
        if isinstance(node, Leaf):
            if not isinstance(node.value, _Deleted):
                entries[key] = node
            continue
        inner = _without_deleted(node)
        if inner.entries or not node.entries:
            entries[key] = inner
    return Table(MappingProxyType(entries), table.origin)


def _deletions(node: Node, path: tuple[str, ...]) -> Iterator[Deletion]:
    if isinstance(node, Table):
        for key, inner in node.entries.items():
            yield from _deletions(inner, (*path, key))
    elif isinstance(node.value, _Deleted):
        yield path, node.origin, node.value.deleted
