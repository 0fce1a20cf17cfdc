"""A line chart as SVG, for light and dark pages; the x axis has names instead of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 380, 64, 24, 92, 56
# The last line is ours.
COLORS = [("#94a3b8", "#7688a1"), ("#8b5cf6", "#b79bfa"), ("#e8a33d", "#d9932a"), ("#12924f", "#34c77b")]
NAMES = {"inf": "none"}


@dataclass(frozen=True)
class Line:
    """One line: its label, and its values from 0 to 1 by the name of x."""

    label: str
    values: Mapping[str, float]


def line_chart(title: str, lines: Sequence[Line], *, x_title: str, y_title: str) -> str:
    """Draw lines with markers, and their values at both ends as tooltips."""
    names = list(lines[0].values)
    step = (WIDTH - LEFT - RIGHT) / max(1, len(names) - 1)
    height = HEIGHT - TOP - BOTTOM
    parts = _head(title, lines)
    for tenth in range(0, 11, 2):
        y = TOP + height * (1 - tenth / 10)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{tenth * 10}%", "muted", "end", 11))
    for index, name in enumerate(names):
        anchor = "start" if index == 0 else "end" if index == len(names) - 1 else "middle"
        parts.append(
            _text(LEFT + index * step, HEIGHT - BOTTOM + 18, NAMES.get(name, name), "ink", anchor, 11)
        )
    parts.append(_text(LEFT + (WIDTH - LEFT - RIGHT) / 2, HEIGHT - 14, x_title, "muted", "middle", 11))
    parts.append(_text(18, TOP - 10, y_title, "muted", "start", 11))
    for number, line in enumerate(lines):
        points = [
            (LEFT + index * step, TOP + height * (1 - min(1.0, line.values[name])), name)
            for index, name in enumerate(names)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        parts.append(f'<polyline class="line{number}" points="{path}"/>')
        for x, y, name in points:
            words = f"{line.label}, {NAMES.get(name, name)}: {line.values[name]:.1%}"
            parts.append(
                f'<circle class="dot{number}" cx="{x:.1f}" cy="{y:.1f}" r="4">'
                f"<title>{escape(words)}</title></circle>"
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _head(title: str, lines: Sequence[Line]) -> list[str]:
    def colors(which: int) -> str:
        return "".join(
            f".line{number}{{stroke:{pair[which]}}}.dot{number}{{fill:{pair[which]}}}"
            for number, pair in enumerate(COLORS)
        )

    style = (
        "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,Arial,sans-serif}"
        "polyline{fill:none;stroke-width:2.5}.page{fill:#fff}.ink{fill:#1e293b}.muted{fill:#5b6b80}"
        f".strong{{font-weight:600}}.grid{{stroke:#e2e8f0}}{colors(0)}"
        "@media (prefers-color-scheme: dark){.page{fill:#0f172a}.ink{fill:#e5eaf2}.muted{fill:#9fb0c6}"
        f".grid{{stroke:#1e293b}}{colors(1)}}}"
    )
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}">',
        f"<title>{escape(title)}</title>",
        f"<style>{style}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="10"/>',
        _text(18, 28, title, "ink strong", "start", 14),
    ]
    x = 18.0
    for number, line in enumerate(lines):
        head.append(f'<circle class="dot{number}" cx="{x + 5:.0f}" cy="53" r="5"/>')
        head.append(_text(x + 15, 57, line.label, "ink", "start", 11))
        x += 30 + 6.2 * len(line.label)
    return head


def _text(x: float, y: float, words: str, kind: str, anchor: str, size: int) -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )
