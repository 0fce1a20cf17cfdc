"""Laying documents over each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from types import MappingProxyType

from .document import Leaf, Node, Origin, Table


class _Deleted:
    """Stands where a null has deleted something, with the place of what it deleted, until all is laid."""

    def __init__(self, below: Origin) -> None:
        self.below = below


Deletion = tuple[tuple[str, ...], Origin, Origin]  # the path, where it is deleted, where it stood


def merge(lower: Table, upper: Table) -> Table:
    """Lay one map over another.

    Maps merge key by key; a list or a scalar replaces what was there; null deletes the key, and where there
    is nothing to delete it stays null. What the upper map touches moves to the end, in its order.
    """
    return merge_all([lower, upper])


def merge_all(layers: Iterable[Table]) -> Table:
    """Lay all layers over each other, the first at the bottom; there is at least one."""
    return _swept(reduce(_lay, layers))


def deletions(layers: Iterable[Table]) -> list[Deletion]:
    """Give everything that a null deletes, for those who want to be told."""
    return list(_deletions(reduce(_lay, layers), ()))


def _lay(lower: Table, upper: Table) -> Table:
    entries: dict[str, Node] = {key: node for key, node in lower.entries.items() if key not in upper.entries}
    for key, above in upper.entries.items():
        below = lower.entries.get(key)
        if isinstance(above, Leaf) and above.value is None and below is not None:
            gone = isinstance(below, Leaf) and isinstance(below.value, _Deleted)
            entries[key] = below if gone else Leaf(_Deleted(below.origin), above.origin)
        elif isinstance(above, Table) and isinstance(below, Table):
            entries[key] = _lay(below, above)
        else:
            entries[key] = above
    return Table(MappingProxyType(entries), upper.origin)


def _swept(table: Table) -> Table:
    """Leave out what was deleted, and a map that has nothing else: no file says that it is empty."""
    entries: dict[str, Node] = {}
    for key, node in table.entries.items():
        if isinstance(node, Leaf):
            if not isinstance(node.value, _Deleted):
                entries[key] = node
            continue
        inner = _swept(node)
        if inner.entries or not node.entries:
            entries[key] = inner
    return Table(MappingProxyType(entries), table.origin)


def _deletions(node: Node, path: tuple[str, ...]) -> Iterator[Deletion]:
    if isinstance(node, Table):
        for key, inner in node.entries.items():
            yield from _deletions(inner, (*path, key))
    elif isinstance(node.value, _Deleted):
        yield path, node.origin, node.value.below
