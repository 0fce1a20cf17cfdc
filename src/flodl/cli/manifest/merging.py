"""Laying documents over each other."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from types import MappingProxyType

from .document import Leaf, Node, Table


def merge(lower: Table, upper: Table) -> Table:
    """Lay one map over another.

    Maps merge key by key; a list or a scalar replaces what was there; null deletes the key. What the upper
    map touches moves to the end, in its order.
    """
    entries: dict[str, Node] = {key: node for key, node in lower.entries.items() if key not in upper.entries}
    for key, above in upper.entries.items():
        below = lower.entries.get(key)
        if isinstance(above, Leaf) and above.value is None:
            continue
        if isinstance(above, Table):
            # Also over nothing: a null in a map that is new here has nothing to delete, and is not a value.
            entries[key] = merge(below if isinstance(below, Table) else _nothing(above), above)
        else:
            entries[key] = above
    return Table(MappingProxyType(entries), upper.origin)


def _nothing(table: Table) -> Table:
    return Table(MappingProxyType({}), table.origin)


def merge_all(layers: Iterable[Table]) -> Table:
    """Lay all layers over each other, the first at the bottom; there is at least one."""
    return reduce(merge, layers)
