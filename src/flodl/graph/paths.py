"""Resolve dotted paths and patterns to the subgraphs, tags and nodes of a graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn

from flodl.core import PathError, paths

from .control.control import Control
from .core import GraphCore

PathKind = Literal["subgraph", "tag", "node"]
_MOST_NAMES = 6


@dataclass(frozen=True)
class Match:
    """The result of a path: its kind, the graph that owns the name, and the module there, if any."""

    path: str
    kind: PathKind
    owner: GraphCore
    name: str
    module: nn.Module | None


def graphs_inside(graph: GraphCore) -> Iterator[tuple[str, GraphCore]]:
    """Yield the graphs directly inside, each with its state-dict prefix."""
    for key, module in graph._modules.items():
        if module is not None:
            yield from graphs_at(key, module)


def graphs_at(prefix: str, module: nn.Module) -> Iterator[tuple[str, GraphCore]]:
    """Yield the module if it is a graph, else the graphs inside it, without entering any."""
    if isinstance(module, GraphCore):
        yield prefix, module
        return
    for name, child in module.named_children():
        yield from graphs_at(f"{prefix}.{name}", child)


def find(graph: GraphCore, path: str, *, tag_first: bool = False) -> Match:
    """Resolve one path; raise with the nearest names if it does not exist."""
    match = _follow(graph, paths.split(path), path, inside=False, tag_first=tag_first)
    if match is None:
        known = [known.path for known in all_paths(graph)]
        hint = paths.suggestion(path, known, known_as="paths")
        raise PathError(f"{path!r} is neither a subgraph nor a tag. {hint}")
    return match


def expand(graph: GraphCore, pattern: str) -> list[Match]:
    """Resolve a path, or every path that matches a pattern."""
    if not paths.is_glob(pattern):
        return [find(graph, pattern)]
    known = list(all_paths(graph))
    found = [match for match in known if paths.matches(pattern, match.path)]
    if not found:
        hint = paths.suggestion(pattern, [match.path for match in known], known_as="paths")
        raise PathError(f"no path matches {pattern!r}. {hint}")
    return found


def all_paths(graph: GraphCore, prefix: str = "", *, inside: bool = False) -> Iterator[Match]:
    """Yield every path of a graph: labeled children, tags, then nodes and the parts of control nodes."""
    spec, children = graph.spec, _children_by_label(graph)
    for label, child in children.items():
        yield Match(prefix + label, "subgraph", graph, label, child)
        yield from all_paths(child, f"{prefix}{label}.", inside=True)
    for name in spec.tagged_node:
        if not (inside and name in spec.internal_tags):
            match = _tag(graph, name, prefix + name)
            yield match
            yield from _below(graph, match.module, match.path)
    for key, module in graph._modules.items():
        if key not in spec.tagged_node and module is not None and key not in children:
            yield Match(prefix + key, _kind(module), graph, key, module)
            yield from _below(graph, module, prefix + key)


def _follow(
    graph: GraphCore, segments: list[str], path: str, *, inside: bool, tag_first: bool
) -> Match | None:
    name, rest = segments[0], segments[1:]
    spec = graph.spec
    is_tag = name in spec.tagged_node and not (inside and name in spec.internal_tags)
    if is_tag and tag_first and not rest:
        return _tag(graph, name, path)
    child = _children_by_label(graph).get(name)
    if child is not None:
        if not rest:
            return Match(path, "subgraph", graph, name, child)
        return _follow(child, rest, path, inside=True, tag_first=tag_first)
    if is_tag and not rest:
        return _tag(graph, name, path)
    key = spec.nodes[spec.tagged_node[name]].key if is_tag else name
    is_hidden = inside and key in spec.internal_tags
    module = None if is_hidden else graph._modules.get(key)
    if module is None:
        return None
    return _descend(graph, module, name, rest, path, tag_first)


def _descend(
    owner: GraphCore, module: nn.Module, name: str, rest: list[str], path: str, tag_first: bool
) -> Match | None:
    if not rest:
        return Match(path, _kind(module), owner, name, module)
    if isinstance(module, GraphCore):
        return _follow(module, rest, path, inside=True, tag_first=tag_first)
    child = module._modules.get(rest[0])
    return None if child is None else _descend(owner, child, rest[0], rest[1:], path, tag_first)


def _below(owner: GraphCore, module: nn.Module | None, path: str) -> Iterator[Match]:
    """Yield the paths under a node: into an unlabeled graph, or the parts of a control node."""
    if isinstance(module, GraphCore):
        if module.label is None:
            yield from all_paths(module, f"{path}.", inside=True)
    elif isinstance(module, Control):
        for name, part in module._modules.items():
            if part is not None:
                yield Match(f"{path}.{name}", _kind(part), owner, name, part)
                yield from _below(owner, part, f"{path}.{name}")


def _children_by_label(graph: GraphCore) -> dict[str, GraphCore]:
    return {child.label: child for _, child in graphs_inside(graph) if child.label is not None}


def _tag(graph: GraphCore, name: str, path: str) -> Match:
    key = graph.spec.nodes[graph.spec.tagged_node[name]].key
    return Match(path, "tag", graph, name, graph._modules.get(key))


def _kind(module: nn.Module) -> PathKind:
    return "subgraph" if isinstance(module, GraphCore) else "node"


def paths_with_parameters(graph: nn.Module) -> str:
    """Return where a graph has parameters, in words."""
    names = [name for name, child in graph.named_children() if any(True for _ in child.parameters())]
    shown = ", ".join(map(repr, names[:_MOST_NAMES])) + ", …" * (len(names) > _MOST_NAMES)
    return f"Parameters are at {shown}." if names else "This graph has no parameters."
