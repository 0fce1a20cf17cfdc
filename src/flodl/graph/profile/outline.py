"""List everything in a graph that takes time, in the order of execution, each node before its parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..control.control import Control
from ..core import GraphCore
from ..paths import graphs_at
from ..plan.titles import title_of


@dataclass(frozen=True)
class Entry:
    """A node or part: `path` is its state-dict prefix, `names` are all paths to it (tags, labels)."""

    path: str
    key: str
    kind: str
    title: str
    names: tuple[str, ...]


def outline(graph: GraphCore) -> Iterator[Entry]:
    """List the nodes of a graph and of the graphs inside it."""
    return _nodes(graph, "", ("",))


def _nodes(graph: GraphCore, path: str, above: tuple[str, ...]) -> Iterator[Entry]:
    """Yield the nodes of one graph; `above` are all paths to it."""
    spec = graph.spec
    for index, node in enumerate(spec.nodes):
        if node.kind == "input":
            continue
        target = graph.target(node.key) if node.has_module or node.function is not None else None
        kind = "graph" if isinstance(target, GraphCore) else node.kind
        title = title_of(target) if target is not None else node.merge_op or node.kind
        keys = (node.key, *spec.tags_of.get(index, ()))
        names = tuple(join_path(prefix, key) for prefix in above for key in keys)
        yield from _with_parts(Entry(join_path(path, node.key), node.key, kind, title, names), target, above)


def _with_parts(entry: Entry, target: Any, above: tuple[str, ...]) -> Iterator[Entry]:
    """Yield an entry and its parts; a graph with a label can also be reached by its label."""
    names = entry.names
    if isinstance(target, GraphCore) and target.label:
        names += tuple(join_path(prefix, target.label) for prefix in above)
    names = tuple(dict.fromkeys(names))
    yield Entry(entry.path, entry.key, entry.kind, entry.title, names)
    if isinstance(target, GraphCore):
        yield from _nodes(target, entry.path, names)
    elif isinstance(target, Control):
        for role, part in target.parts().items():
            kind = "graph" if isinstance(part, GraphCore) else "call"
            part_names = tuple(join_path(name, role) for name in names)
            part_entry = Entry(join_path(entry.path, role), role, kind, title_of(part), part_names)
            yield from _with_parts(part_entry, part, above)
    elif isinstance(target, nn.Module):
        for prefix, inner in graphs_at(entry.path, target):
            inner_names = tuple(name + prefix.removeprefix(entry.path) for name in names)
            yield from _nodes(inner, prefix, inner_names)


def join_path(path: str, name: str) -> str:
    """Append a name to a path; either may be empty."""
    return f"{path}.{name}" if path and name else path or name
