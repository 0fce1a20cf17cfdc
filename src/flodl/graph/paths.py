"""Where dotted paths lead: labelled graphs, tags and nodes, wherever they sit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeGuard, cast

from torch import nn

from flodl.core import PathError, paths

from .control.control import Control
from .plan.spec import Spec

if TYPE_CHECKING:
    from .graph import Graph

PlaceKind = Literal["subgraph", "tag", "node"]


@dataclass(frozen=True)
class Place:
    """What a path leads to: its kind, the graph that owns the name, and the module there, if any."""

    path: str
    kind: PlaceKind
    owner: Graph
    name: str
    module: nn.Module | None


def is_graph(module: object) -> TypeGuard[Graph]:
    """Say whether a module is a graph, without importing the class that imports this file."""
    return isinstance(module, nn.Module) and isinstance(vars(module).get("_spec"), Spec)


def as_graph(part: nn.Module) -> Graph:
    """Read `self` inside a base class of `Graph`, none of which is ever used alone."""
    return cast("Graph", part)


def graphs_inside(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """Give the graphs directly inside, each with the state-dict prefix where it sits."""
    for key, module in graph._modules.items():
        if module is not None:
            yield from graphs_at(key, module)


def graphs_at(prefix: str, module: nn.Module) -> Iterator[tuple[str, Graph]]:
    """Give a module if it is a graph, or else the graphs inside it, not entering any."""
    if is_graph(module):
        yield prefix, module
        return
    for name, child in module.named_children():
        yield from graphs_at(f"{prefix}.{name}", child)


def labelled(graph: Graph) -> dict[str, Graph]:
    """Give the children by label, in the order in which they sit."""
    return {child.label: child for _, child in graphs_inside(graph) if child.label is not None}


def find(graph: Graph, path: str, *, tag_first: bool = False) -> Place:
    """Follow one path; the nearest names are in the error when it leads nowhere."""
    place = _follow(graph, paths.split(path), path, inside=False, tag_first=tag_first)
    if place is None:
        known = [known.path for known in every_place(graph)]
        hint = paths.suggestion(path, known, known_as="paths")
        raise PathError(f"{path!r} is neither a subgraph nor a tag. {hint}")
    return place


def expand(graph: Graph, pattern: str) -> list[Place]:
    """Follow a path, or every path that fits a pattern."""
    if not paths.is_glob(pattern):
        return [find(graph, pattern)]
    known = list(every_place(graph))
    found = [place for place in known if paths.matches(pattern, place.path)]
    if not found:
        hint = paths.suggestion(pattern, [place.path for place in known], known_as="paths")
        raise PathError(f"no path fits {pattern!r}. {hint}")
    return found


def _follow(graph: Graph, segments: list[str], path: str, *, inside: bool, tag_first: bool) -> Place | None:
    name, rest = segments[0], segments[1:]
    spec = graph._spec
    tagged = name in spec.tagged_node and not (inside and name in spec.internal_tags)
    if tagged and tag_first and not rest:
        return _tag_place(graph, name, path)
    child = labelled(graph).get(name)
    if child is not None:
        if not rest:
            return Place(path, "subgraph", graph, name, child)
        return _follow(child, rest, path, inside=True, tag_first=tag_first)
    if tagged and not rest:
        return _tag_place(graph, name, path)
    key = spec.nodes[spec.tagged_node[name]].key if tagged else name
    hidden = inside and key in spec.internal_tags
    module = None if hidden else graph._modules.get(key)
    if module is None:
        return None
    return _descend(graph, module, name, rest, path, tag_first)


def _descend(
    owner: Graph, module: nn.Module, name: str, rest: list[str], path: str, tag_first: bool
) -> Place | None:
    if not rest:
        return Place(path, "subgraph" if is_graph(module) else "node", owner, name, module)
    if is_graph(module):
        return _follow(module, rest, path, inside=True, tag_first=tag_first)
    child = module._modules.get(rest[0])
    return None if child is None else _descend(owner, child, rest[0], rest[1:], path, tag_first)


def _tag_place(graph: Graph, name: str, path: str) -> Place:
    key = graph._spec.nodes[graph._spec.tagged_node[name]].key
    return Place(path, "tag", graph, name, graph._modules.get(key))


def every_place(graph: Graph, prefix: str = "", *, inside: bool = False) -> Iterator[Place]:
    """Give every path below a graph: labelled children, tags, then nodes and the parts of control nodes."""
    spec, children = graph._spec, labelled(graph)
    for label, child in children.items():
        yield Place(prefix + label, "subgraph", graph, label, child)
        yield from every_place(child, f"{prefix}{label}.", inside=True)
    for name in spec.tagged_node:
        if not (inside and name in spec.internal_tags):
            place = _tag_place(graph, name, prefix + name)
            yield place
            yield from _below(graph, place.module, place.path)
    for key, module in graph._modules.items():
        if key not in spec.tagged_node and module is not None and key not in children:
            kind: PlaceKind = "subgraph" if is_graph(module) else "node"
            yield Place(prefix + key, kind, graph, key, module)
            yield from _below(graph, module, prefix + key)


def _below(owner: Graph, module: nn.Module | None, path: str) -> Iterator[Place]:
    """Give the paths under a node: into an unlabelled graph, or the parts of a control node."""
    if is_graph(module):
        if module.label is None:
            yield from every_place(module, f"{path}.", inside=True)
    elif isinstance(module, Control):
        for name, part in module._modules.items():
            if part is not None:
                kind: PlaceKind = "subgraph" if is_graph(part) else "node"
                yield Place(f"{path}.{name}", kind, owner, name, part)
                yield from _below(owner, part, f"{path}.{name}")
