"""Turn a graph into a drawing: a box for every node, a cluster for every graph and control node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..control.control import Control
from ..core import GraphCore
from ..plan.spec import Node
from ..plan.titles import title_of
from ..profile.profile import Profile
from .control import Drawn, Inside, inside_of, settings_of_control
from .model import Box, Cluster, Drawing, Edge, Timing
from .words import family_of, settings_of, size_of, text_of

_SIGNS = {"add": "+", "mul": "×"}


def sketch(graph: GraphCore, profile: Profile | None = None) -> Drawing:
    """Return the drawing of a graph, with the times of a profile if one is passed."""
    artist = _Artist(profile)
    inside = artist.graph_inside(graph, "", is_root=True)
    output = Box("(output)", "output", "output")
    count, _ = size_of(graph)
    return Drawing(
        title=graph.label or "graph",
        num_parameters=count,
        inside=(*inside.items, output),
        edges=(*artist.edges, Edge(inside.exit, output.path)),
        total_s=None if profile is None else profile.total_s,
        device="" if profile is None else profile.device,
    )


class _Artist:
    """Draw nested graphs, and collect the edges."""

    def __init__(self, profile: Profile | None) -> None:
        self.edges: list[Edge] = []
        self._rows = {} if profile is None else {row.path: row for row in profile.rows}

    def graph_inside(self, graph: GraphCore, path: str, *, is_root: bool = False) -> Inside:
        """Draw the nodes of a graph and the edges between them.

        The input of an inner graph is a dot if several nodes read it. If only one does, there is no dot:
        the edge from outside leads to that node.
        """
        spec = graph.spec
        prefix = f"{path}." if path else ""
        drawn = {
            index: self._node(graph, index, node, prefix + node.key)
            for index, node in enumerate(spec.nodes)
            if node.kind != "input"
        }
        readers = _readers(spec.nodes, drawn)
        entries: dict[str, str] = {}
        for index, node in enumerate(spec.nodes):
            if node.kind == "input":
                tags = tuple(tag for tag in spec.tags_of.get(index, ()) if tag != node.key)
                heads = readers.get(index, [])
                if is_root or tags or len(heads) != 1 or spec.output == index:
                    name = node.key if index else spec.all_input_names[0] * is_root
                    drawn[index] = _input(name, prefix + node.key, tags, is_root=is_root)
                    heads = [drawn[index].entry]
                entries[node.key] = heads[0]
        self._connect(spec.nodes, drawn)
        for reader, writer in spec.carried:
            self.edges.append(Edge(drawn[writer].exit, drawn[reader].entry, "carry"))
        items = tuple(drawn[index].item for index in sorted(drawn))
        return Inside(
            items, entries[spec.nodes[0].key], drawn[spec.output].exit, lambda name: (entries[name],)
        )

    def part(self, target: Callable[..., Any], path: str, *, role: str, decides: bool = False) -> Drawn:
        """Draw a part of a control node."""
        return self._target(target, path, name=role, decides=decides)

    def _node(self, graph: GraphCore, index: int, node: Node, path: str) -> Drawn:
        tags = graph.spec.tags_of.get(index, ())
        if node.kind == "state":
            words = f"the value of #{node.carries} in the previous call"
            return _plain(Box(path, "state", node.carries or "", text=words, timing=self._timing(path)))
        if node.kind == "merge":
            return _plain(self._merge(graph, node, path, tags))
        return self._target(graph.target(node.key), path, name=node.key, tags=tags)

    def _merge(self, graph: GraphCore, node: Node, path: str, tags: tuple[str, ...]) -> Box:
        timing = self._timing(path)
        if node.merge_op == "callable":
            target = graph.target(node.key)
            size = size_of(target)
            return Box(path, "merge", title_of(target), "", tags, *size, text_of(target), timing)
        op = node.merge_op or ""
        settings = f"dim {node.merge_dim}" if op == "cat" else ""
        return Box(path, "merge", _SIGNS.get(op, op), settings, tags, text=f"merge by {op}", timing=timing)

    def _target(
        self, target: Any, path: str, *, name: str, tags: tuple[str, ...] = (), decides: bool = False
    ) -> Drawn:
        """Draw a node or part: graphs and control nodes as clusters, anything else as a box."""
        count, frozen = size_of(target)
        timing = self._timing(path)
        if isinstance(target, GraphCore):
            inside = self.graph_inside(target, path)
            title = target.label or name
            shown = tuple(tag for tag in tags if tag != title)
            cluster = Cluster(path, "graph", title, "", shown, count, frozen, timing, inside.items)
        elif isinstance(target, Control):
            inside = inside_of(target, path, self)
            words = settings_of_control(target)
            cluster = Cluster(
                path, target.kind, target.kind, words, tags, count, frozen, timing, inside.items
            )
        else:
            family = "route" if decides else family_of(target)
            words, text = settings_of(target), text_of(target)
            return _plain(Box(path, family, title_of(target), words, tags, count, frozen, text, timing))
        return Drawn(cluster, inside.entry, inside.exit, inside.takes)

    def _timing(self, path: str) -> Timing | None:
        row = self._rows.get(path)
        return None if row is None else Timing(row.seconds, row.share, row.calls)

    def _connect(self, nodes: Sequence[Node], drawn: dict[int, Drawn]) -> None:
        """Add the edges between the nodes of one graph; an input without a box gets its edge outside."""
        for index, node in enumerate(nodes):
            for source in node.sources if node.kind != "state" else ():
                if source in drawn:
                    self.edges.append(Edge(drawn[source].exit, drawn[index].entry))
            for name, value in node.refs:
                if value in drawn:
                    tail = drawn[value].exit
                    carried = nodes[value].kind == "state"
                    for head in drawn[index].takes(name):
                        self.edges.append(
                            Edge(tail, head, "state") if carried else Edge(tail, head, "ref", name)
                        )


def _plain(box: Box) -> Drawn:
    return Drawn(box, box.path, box.path, lambda _: (box.path,))


def _input(name: str, path: str, tags: tuple[str, ...], *, is_root: bool) -> Drawn:
    if is_root:
        return _plain(Box(path, "input", name, tags=tags, text="an input of the model"))
    return _plain(Box(path, "port", name, tags=tags, text="an input of this graph"))


def _readers(nodes: Sequence[Node], drawn: dict[int, Drawn]) -> dict[int, list[str]]:
    """Map each value to the boxes that read it; a carried value reads nothing in this call."""
    found: dict[int, list[str]] = {}
    for index, node in enumerate(nodes):
        if node.kind not in ("input", "state"):
            for source in node.sources:
                found.setdefault(source, []).append(drawn[index].entry)
            for name, value in node.refs:
                found.setdefault(value, []).extend(drawn[index].takes(name))
    return found
