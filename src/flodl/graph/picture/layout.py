"""Positions of boxes, clusters and edges, computed by Graphviz from the sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .dot import Attributes, write_dot
from .engines import lay_out
from .label import box_size, heading_words, text_width, words_width
from .model import Box, Cluster, Drawing, Edge
from .palette import EDGES

Point = tuple[float, float]

_LABEL_SIZE = 12.0
_LETTER = 0.6 * _LABEL_SIZE


@dataclass(frozen=True)
class Rect:
    """A rectangle; y grows downwards."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Route:
    """The path of an edge: a start and Bézier triples, the tip of the arrow, and the center of the label."""

    curve: tuple[Point, ...]
    tip: Point
    label: Point | None


@dataclass(frozen=True)
class Layout:
    """The positions of all parts of a drawing; routes are in the order of the edges."""

    width: float
    height: float
    boxes: dict[str, Rect]
    clusters: dict[str, Rect]
    routes: tuple[Route, ...]


def place(drawing: Drawing) -> Layout:
    """Compute the layout of a drawing."""
    return _read(lay_out(write_dot(drawing, _LayoutStyle())), drawing)


class _LayoutStyle:
    """The style for the layout: empty boxes of fixed sizes, and rows of x as wide as the labels."""

    def whole(self) -> Attributes:
        return {"rankdir": "TB", "nodesep": "0.32", "ranksep": "0.36", "splines": "true"}

    def box(self, box: Box) -> Attributes:
        size = box_size(box)
        return {
            "label": "",
            "shape": "box",
            "fixedsize": "true",
            "width": f"{size.width / 72:.4f}",
            "height": f"{size.height / 72:.4f}",
        }

    def cluster(self, cluster: Cluster) -> Attributes:
        return {
            **_label_of_width(*map(words_width, heading_words(cluster))),
            "labeljust": "l",
            "margin": "14",
        }

    def edge(self, edge: Edge) -> Attributes:
        # A higher weight keeps the stream straight; other edges bend around it.
        attributes = {"weight": "4" if edge.kind == "stream" else "1"}
        if edge.kind == "state":
            attributes["minlen"] = "0"  # next to the node that reads it, not above
        if EDGES[edge.kind].closes:
            attributes["constraint"] = "false"
        return attributes | (_label_of_width(text_width(edge.label, "tag") + 6) if edge.label else {})


def _label_of_width(*widths: float) -> dict[str, str]:
    """Return a label of lines with these widths, in a font whose width Graphviz knows."""
    lines = ["x" * math.ceil(width / _LETTER) for width in widths]
    return {"label": "\n".join(lines), "fontname": "Courier", "fontsize": f"{_LABEL_SIZE:g}"}


def _read(found: dict[str, Any], drawing: Drawing) -> Layout:
    _, _, width, height = (float(number) for number in found["bb"].split(","))
    boxes: dict[str, Rect] = {}
    clusters: dict[str, Rect] = {}
    for item in found["objects"]:
        if "pos" in item:
            x, y = (float(number) for number in item["pos"].split(","))
            w, h = float(item["width"]) * 72, float(item["height"]) * 72
            boxes[item["name"]] = Rect(x - w / 2, height - y - h / 2, w, h)
        else:
            left, bottom, right, top = (float(number) for number in item["bb"].split(","))
            name = item["name"].removeprefix("cluster_")
            clusters[name] = Rect(left, height - top, right - left, top - bottom)
    routes = {edge["id"]: _route(edge, height) for edge in found.get("edges", ())}
    ordered = tuple(routes[f"edge_{position}"] for position in range(len(drawing.edges)))
    return Layout(width, height, boxes, clusters, ordered)


def _route(edge: dict[str, Any], height: float) -> Route:
    """Parse `e,tip start c1 c2 p …`; a very short edge has no tip and ends at the end of its curve."""
    tip: Point | None = None
    curve: list[Point] = []
    for word in edge["pos"].split(";")[0].split():
        if word.startswith("e,"):
            tip = _point(word[2:], height)
        elif not word.startswith("s,"):
            curve.append(_point(word, height))
    label = _point(edge["lp"], height) if "lp" in edge else None
    return Route(tuple(curve), tip or curve[-1], label)


def _point(text: str, height: float) -> Point:
    x, y = text.split(",")
    return float(x), height - float(y)
