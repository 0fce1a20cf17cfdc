"""Write a drawing in the DOT language, for users and for the layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from .label import Words, box_words, heading_words, total_words
from .model import Box, Cluster, Drawing, Edge, Family
from .palette import CLUSTERS, EDGES, FAMILIES, HEAT, heat_of

Attributes = Mapping[str, str]


class Style(Protocol):
    """The DOT attributes of each part of a drawing."""

    def whole(self) -> Attributes:
        """Attributes of the graph."""

    def box(self, box: Box) -> Attributes:
        """Attributes of a node."""

    def cluster(self, cluster: Cluster) -> Attributes:
        """Attributes of a subgraph."""

    def edge(self, edge: Edge) -> Attributes:
        """Attributes of an edge."""


def write_dot(drawing: Drawing, style: Style | None = None) -> str:
    """Return the DOT text; nodes are named by their paths, so it can be searched and edited.

    >>> print(write_dot(Drawing("tiny", 0, (Box("gelu_1", "activation", "GELU"),), ())))
    digraph "tiny" {
      graph [rankdir="TB", fontname="Helvetica", nodesep="0.3", ranksep="0.35", label="tiny"];
      "gelu_1" [label="GELU", shape="ellipse", style="filled", fillcolor="#fff4e6", color="#f7a654", \
fontname="Helvetica", fontsize="11"];
    }
    <BLANKLINE>
    """
    style = style or _UserStyle(drawing)
    lines = [f"digraph {_quoted(drawing.title)} {{", f"  graph [{_format(style.whole())}];"]
    for item in drawing.inside:
        lines += _item(item, style, "  ")
    for position, edge in enumerate(drawing.edges):
        attributes = {**style.edge(edge), "id": f"edge_{position}"}
        lines.append(f"  {_quoted(edge.tail)} -> {_quoted(edge.head)} [{_format(attributes)}];")
    return "\n".join([*lines, "}"]) + "\n"


def _item(item: Box | Cluster, style: Style, lead: str) -> Iterator[str]:
    if isinstance(item, Box):
        yield f"{lead}{_quoted(item.path)} [{_format(style.box(item))}];"
        return
    yield f"{lead}subgraph {_quoted('cluster_' + item.path)} {{"
    yield f"{lead}  graph [{_format(style.cluster(item))}];"
    for inner in item.inside:
        yield from _item(inner, style, lead + "  ")
    yield f"{lead}}}"


def _format(attributes: Attributes) -> str:
    return ", ".join(f"{name}={_quoted(value)}" for name, value in attributes.items())


def _lines(lines: list[Words]) -> str:
    return "\n".join("  ".join(text for _, text in line) for line in lines)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


_SHAPES: dict[Family, str] = {
    "input": "invhouse",
    "output": "house",
    "activation": "ellipse",
    "merge": "ellipse",
    "route": "hexagon",
    "state": "diamond",
    "port": "ellipse",
}


class _UserStyle:
    """The style for users: labels, shapes and colors that any Graphviz can draw."""

    def __init__(self, drawing: Drawing) -> None:
        self._label = "\n".join(filter(None, [drawing.title, total_words(drawing)]))
        self._heat = heat_of(drawing)

    def whole(self) -> Attributes:
        return {
            "rankdir": "TB",
            "fontname": "Helvetica",
            "nodesep": "0.3",
            "ranksep": "0.35",
            "label": self._label,
        }

    def box(self, box: Box) -> Attributes:
        if box.family == "port" and not box.title:
            return {"label": "", "shape": "circle", "width": "0.1", "style": "filled", "fillcolor": "#64748b"}
        colors = FAMILIES[box.family].light
        heat = self._heat.get(box.path)
        shape = _SHAPES.get(box.family, "box")
        return {
            "label": _lines(box_words(box)),
            "shape": shape,
            "style": "filled" if shape != "box" else "rounded,filled",
            "fillcolor": colors.fill if heat is None else HEAT[heat].light.fill,
            "color": colors.stroke,
            "fontname": "Helvetica",
            "fontsize": "11",
        }

    def cluster(self, cluster: Cluster) -> Attributes:
        colors = CLUSTERS[cluster.kind].light
        return {
            "label": _lines(heading_words(cluster)),
            "labeljust": "l",
            "style": "rounded,filled",
            "fillcolor": colors.fill,
            "color": colors.stroke,
            "fontcolor": colors.text,
            "fontname": "Helvetica",
            "fontsize": "11",
        }

    def edge(self, edge: Edge) -> Attributes:
        look = EDGES[edge.kind]
        attributes = {"color": look.light, "arrowsize": "0.7", "style": look.style}
        if look.closes:
            attributes["constraint"] = "false"
        if edge.label:
            attributes |= {
                "label": edge.label,
                "fontcolor": look.light,
                "fontname": "Helvetica",
                "fontsize": "10",
            }
        return attributes
