"""Everything in a graph that takes time: nodes as they run, each before its parts and what is inside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from .. import paths as places
from ..control.control import Control
from ..paths import is_graph
from ..plan.titles import title_of

if TYPE_CHECKING:
    from ..graph import Graph


@dataclass(frozen=True)
class Entry:
    """A node or part: `path` is where its weights are, `names` are all paths to it, by tags and labels."""

    path: str
    key: str
    kind: str
    what: str
    names: tuple[str, ...]


def outline(graph: Graph) -> Iterator[Entry]:
    """List the nodes of a graph and of the graphs inside it."""
    return _nodes(graph, "", ("",))


def _nodes(graph: Graph, path: str, above: tuple[str, ...]) -> Iterator[Entry]:
    """List the nodes of one graph; `above` are all paths to it."""
    spec = graph._spec
    for index, node in enumerate(spec.nodes):
        if node.kind == "input":
            continue
        target = graph.target(node.key) if node.has_module or node.function is not None else None
        kind = "graph" if is_graph(target) else node.kind
        what = title_of(target) if target is not None else node.merge_op or node.kind
        keys = (node.key, *spec.tags_of.get(index, ()))
        names = tuple(joined(prefix, key) for prefix in above for key in keys)
        yield from _with_parts(Entry(joined(path, node.key), node.key, kind, what, names), target, above)


def _with_parts(entry: Entry, target: Any, above: tuple[str, ...]) -> Iterator[Entry]:
    """List an entry and what lies under it; a graph with a label is also known by it in the graph around."""
    names = entry.names
    if is_graph(target) and target.label:
        names += tuple(joined(prefix, target.label) for prefix in above)
    names = tuple(dict.fromkeys(names))
    yield Entry(entry.path, entry.key, entry.kind, entry.what, names)
    if is_graph(target):
        yield from _nodes(target, entry.path, names)
    elif isinstance(target, Control):
        for role, part in target.parts().items():
            kind = "graph" if is_graph(part) else "call"
            further = tuple(joined(name, role) for name in names)
            below = Entry(joined(entry.path, role), role, kind, title_of(part), further)
            yield from _with_parts(below, part, above)
    elif isinstance(target, nn.Module):
        for place, inner in places.graphs_at(entry.path, target):
            further = tuple(name + place.removeprefix(entry.path) for name in names)
            yield from _nodes(inner, place, further)


def joined(path: str, name: str) -> str:
    """Put a name behind a path, either of which may be empty."""
    return f"{path}.{name}" if path and name else path or name
