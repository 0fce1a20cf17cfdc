"""Merge documents: inheritance and overlays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from types import MappingProxyType

from .document import Leaf, Node, Origin, Table


class _Deleted:
    """Marks a key that a null deleted, with the origin of the deleted value, until all layers are merged."""

    def __init__(self, deleted: Origin) -> None:
        self.deleted = deleted


Deletion = tuple[tuple[str, ...], Origin, Origin]  # path, origin of the null, origin of the deleted value


def merge(lower: Table, upper: Table) -> Table:
    """Merge an upper map into a lower one.

    Maps are merged key by key. A list or a scalar replaces the old value. Null deletes the key; if there is
    nothing to delete, it stays null. Keys of the upper map move to the end, in its order.
    """
    return merge_all([lower, upper])


def merge_all(layers: Iterable[Table]) -> Table:
    """Merge one or more layers, the lowest first."""
    return _without_deleted(reduce(_merge_two, layers))


def deletions(layers: Iterable[Table]) -> list[Deletion]:
    """Return everything that a null deletes."""
    return list(_deletions(reduce(_merge_two, layers), ()))


def _merge_two(lower: Table, upper: Table) -> Table:
    entries: dict[str, Node] = {key: node for key, node in lower.entries.items() if key not in upper.entries}
    for key, above in upper.entries.items():
        below = lower.entries.get(key)
        if isinstance(above, Leaf) and above.value is None and below is not None:
            already_deleted = isinstance(below, Leaf) and isinstance(below.value, _Deleted)
            entries[key] = below if already_deleted else Leaf(_Deleted(below.origin), above.origin)
        elif isinstance(above, Table) and isinstance(below, Table):
            entries[key] = _merge_two(below, above)
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
