"""Write a drawing with its layout as SVG: light and dark mode, tooltips on boxes, no scripts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from xml.sax.saxutils import escape

from flodl.core.formats import format_count

from ..profile.profile import format_timing
from .label import (
    BOLD,
    GAP,
    SIZES,
    Tone,
    Words,
    box_words,
    heading_words,
    is_round,
    line_height,
    total_words,
    words_width,
)
from .layout import Layout, Point, Rect, Route
from .model import Box, Cluster, Drawing, Edge
from .palette import CLUSTERS, EDGES, FAMILIES, HEAT, HEAT_MUTED, MUTED, PAGE, TAG, heat_of
from .stylesheet import stylesheet

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
_MARGIN = 20.0
_HEADER = 30.0
_LEGEND = Rect(0, 0, 22.0 * len(HEAT), 36.0)
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CLASSES: dict[Tone, str] = {
    "title": "fl-ink",
    "time": "fl-ink",
    "settings": "fl-muted",
    "small": "fl-muted",
    "tag": "fl-tag",
}


def write_svg(drawing: Drawing, layout: Layout) -> str:
    """Return the SVG text; the same drawing always produces the same text."""
    return "\n".join(_Writer(drawing, layout).lines()) + "\n"


class _Writer:
    def __init__(self, drawing: Drawing, layout: Layout) -> None:
        self._drawing = drawing
        self._layout = layout
        self._heat = heat_of(drawing)
        content = max(layout.width, words_width(self._header()), _LEGEND.width if self._heat else 0)
        self._width = math.ceil(content + 2 * _MARGIN)
        self._top = _MARGIN + _HEADER + (_LEGEND.height if self._heat else 0)
        self._height = math.ceil(layout.height + self._top + _MARGIN)

    def lines(self) -> Iterator[str]:
        drawing, width, height = self._drawing, self._width, self._height
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="{_FONT}">'
        )
        yield f"<title>{_text(drawing.title)}</title>"
        yield f"<desc>{_text(self._description())}</desc>"
        yield f"<style>{stylesheet(with_heat=bool(self._heat))}</style>"
        yield f'<rect class="fl-page" width="{width}" height="{height}" rx="12" fill="{PAGE.light.fill}"/>'
        yield _words(self._header(), _MARGIN, _MARGIN + 13, PAGE.light.text)
        if self._heat:
            yield from self._legend()
        yield f'<g transform="translate({_n((width - self._layout.width) / 2)} {_n(self._top)})">'
        for cluster in drawing.clusters():
            yield from _cluster(cluster, self._layout.clusters[cluster.path])
        for edge, route in zip(drawing.edges, self._layout.routes):
            yield from _edge(edge, route)
        for cluster in drawing.clusters():
            yield _heading(cluster, self._layout.clusters[cluster.path])
        for box in drawing.boxes():
            yield from _box(box, self._layout.boxes[box.path], self._heat.get(box.path))
        yield "</g>"
        yield "</svg>"

    def _description(self) -> str:
        nodes = [box.title for box in self._drawing.boxes() if box.title]
        shown = ", ".join(nodes[:40]) + (f" and {len(nodes) - 40} more" if len(nodes) > 40 else "")
        count = format_count(self._drawing.num_parameters)
        return f"A model with {count} parameters: {shown}. {total_words(self._drawing)}".strip()

    def _header(self) -> Words:
        words: Words = [("title", self._drawing.title)]
        if self._drawing.num_parameters:
            words.append(("small", f"{format_count(self._drawing.num_parameters)} params"))
        if total := total_words(self._drawing):
            words.append(("time", total))
        return words

    def _legend(self) -> Iterator[str]:
        """The scale from the coldest to the hottest box."""
        top = max(box.timing.seconds for box in self._drawing.boxes() if box.timing is not None)
        step = _LEGEND.width / len(HEAT)
        y = _MARGIN + _HEADER - 8
        for position, look in enumerate(HEAT):
            yield f'<g class="fl-heat-{position}">'
            place, light = _frame(Rect(_MARGIN + position * step, y, step, 9)), look.light
            yield f'<rect {place} fill="{light.fill}" stroke="{light.stroke}" stroke-width="0.5"/></g>'
        ends = ((_MARGIN, "start", "0 µs"), (_MARGIN + _LEGEND.width, "end", format_timing(top)))
        for x, anchor, words in ends:
            yield (
                f'<text class="fl-muted" x="{_n(x)}" y="{_n(y + 21)}" font-size="10" text-anchor="{anchor}" '
                f'fill="{MUTED.light}">{words}</text>'
            )


def _cluster(cluster: Cluster, rect: Rect) -> Iterator[str]:
    colors = CLUSTERS[cluster.kind].light
    yield f'<g class="fl-{cluster.kind}">'
    yield f"<title>{_text(cluster.path)}</title>"
    yield f'<rect {_frame(rect)} rx="10" fill="{colors.fill}" stroke="{colors.stroke}"/>'
    yield "</g>"


def _heading(cluster: Cluster, rect: Rect) -> str:
    """Return a heading drawn over the edges, with an outline in the color of the cluster."""
    colors = CLUSTERS[cluster.kind].light
    lines = enumerate(heading_words(cluster))
    words = "".join(_words(line, rect.x + 12, rect.y + 19 + 15 * row, colors.text) for row, line in lines)
    rim = f'stroke="{colors.fill}" stroke-width="5" stroke-linejoin="round" paint-order="stroke"'
    return f'<g class="fl-{cluster.kind} fl-heading" {rim}>{words}</g>'


def _box(box: Box, rect: Rect, heat: int | None) -> Iterator[str]:
    family = "plain" if box.timing is not None and heat is None else box.family
    look = FAMILIES[family] if heat is None else HEAT[heat]
    name = f"fl-{family}" if heat is None else f"fl-hot fl-heat-{heat}"
    radius = min(rect.height / 2, 18) if is_round(box) else 8
    dashes = ' stroke-dasharray="4 3"' if box.family == "state" else ""
    about = "\n".join(filter(None, [box.path, box.text]))
    yield f'<g class="{name}">'
    yield f"<title>{_text(about)}</title>"
    yield (
        f'<rect {_frame(rect)} rx="{_n(radius)}" fill="{look.light.fill}" '
        f'stroke="{look.light.stroke}" stroke-width="1.25"{dashes}/>'
    )
    lines = box_words(box)
    x = rect.x + rect.width / 2
    y = rect.y + (rect.height - sum(map(line_height, lines))) / 2
    for words in lines:
        height = line_height(words)
        yield _words(words, x, y + height / 2 + 4.3, look.light.text, centred=True, hot=heat is not None)
        y += height
    yield "</g>"


def _edge(edge: Edge, route: Route) -> Iterator[str]:
    look = EDGES[edge.kind]
    pen = f'stroke="{look.light}" stroke-width="{look.width:g}"'
    if look.dashes:
        pen += f' stroke-dasharray="{look.dashes}" stroke-linecap="round"'
    yield f'<g class="fl-edge-{edge.kind}">'
    yield f'<path d="{_curve(route)}" fill="none" {pen}/>'
    yield f'<path class="fl-tip" d="{_arrow(route)}" fill="{look.light}" stroke="{look.light}"/>'
    if edge.label and route.label is not None:
        x, y = route.label
        yield (
            f'<text x="{_n(x)}" y="{_n(y + 4)}" font-size="{SIZES["tag"]:g}" text-anchor="middle" '
            f'fill="{look.light}">{_text(edge.label)}</text>'
        )
    yield "</g>"


def _words(words: Words, x: float, y: float, ink: str, *, centred: bool = False, hot: bool = False) -> str:
    """Return texts in one line that starts at `x` or is centered on it."""
    muted, tag = (HEAT_MUTED.light, HEAT_MUTED.light) if hot else (MUTED.light, TAG.light)
    fills: dict[Tone, str] = {"title": ink, "time": ink, "settings": muted, "small": muted, "tag": tag}
    spans = []
    for position, (tone, text) in enumerate(words):
        gap = f' dx="{_n(GAP)}"' if position else ""
        weight = ' font-weight="600"' if tone in BOLD else ""
        spans.append(
            f'<tspan class="{_CLASSES[tone]}" font-size="{SIZES[tone]:g}"{weight}{gap} '
            f'fill="{fills[tone]}">{_text(text)}</tspan>'
        )
    anchor = ' text-anchor="middle"' if centred else ""
    return f'<text x="{_n(x)}" y="{_n(y)}"{anchor}>{"".join(spans)}</text>'


def _frame(rect: Rect) -> str:
    return f'x="{_n(rect.x)}" y="{_n(rect.y)}" width="{_n(rect.width)}" height="{_n(rect.height)}"'


def _curve(route: Route) -> str:
    start, *rest = route.curve
    points = " ".join(f"{_n(x)},{_n(y)}" for x, y in rest)
    return f"M{_n(start[0])},{_n(start[1])} C{points}"


def _arrow(route: Route) -> str:
    """Return a slim arrowhead from the end of the curve to the tip."""
    (x, y), (tip_x, tip_y) = _last(route), route.tip
    length = math.hypot(tip_x - x, tip_y - y) or 1.0
    across_x, across_y = (tip_y - y) / length * 3.4, (x - tip_x) / length * 3.4
    corners: list[Point] = [(x + across_x, y + across_y), (tip_x, tip_y), (x - across_x, y - across_y)]
    return "M" + " L".join(f"{_n(cx)},{_n(cy)}" for cx, cy in corners) + " Z"


def _last(route: Route) -> Point:
    return route.curve[-1] if route.curve[-1] != route.tip else route.curve[-2]


def _n(number: float) -> str:
    """Format a coordinate with at most two decimals."""
    return f"{number:.2f}".rstrip("0").rstrip(".")


def _text(text: str) -> str:
    return escape(_NOT_IN_XML.sub("�", text))
