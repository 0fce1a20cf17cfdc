"""Pictures of graphs: a drawing without positions, a layout by Graphviz, and our own SVG."""

from __future__ import annotations

from .dot import write_dot
from .layout import place
from .model import Box, Cluster, Drawing, Edge
from .sketch import sketch
from .svg import write_svg

__all__ = ["Box", "Cluster", "Drawing", "Edge", "place", "sketch", "write_dot", "write_svg"]
