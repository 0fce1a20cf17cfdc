"""The loss over the learning rate as an SVG picture, with the colors of the other pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 380, 64, 20, 36, 48
_STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1b2230; }
.quiet { fill: #5b6474; font-size: 11px; } .ground { fill: #ffffff; } .line { stroke: #e1e4ea; }
.loss { stroke: #2b62e0; stroke-width: 2; fill: none; } .each { fill: #2b62e0; opacity: 0.3; }
.chosen { stroke: #16855a; stroke-width: 1.5; stroke-dasharray: 4 3; } .name { fill: #16855a; }
@media (prefers-color-scheme: dark) {
text { fill: #e6e9ef; } .quiet { fill: #98a2b3; } .ground { fill: #161b22; } .line { stroke: #2a313c; }
.loss { stroke: #6f9dff; } .each { fill: #6f9dff; } .chosen { stroke: #43c68f; } .name { fill: #43c68f; }
}
"""


class _Plane:
    """Positions in the picture for rates, on a log scale, and losses."""

    def __init__(self, rates: Sequence[float], low: float, high: float) -> None:
        self.first, self.last = math.log10(rates[0]), math.log10(rates[-1])
        self.low, self.high = low, high if high > low else low + 1.0

    def x(self, rate: float) -> float:
        share = (math.log10(rate) - self.first) / max(self.last - self.first, 1e-9)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, loss: float) -> float:
        share = min(max((loss - self.low) / (self.high - self.low), 0.0), 1.0)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)


def draw(
    rates: Sequence[float], losses: Sequence[float], smoothed: Sequence[float], suggestion: float | None
) -> str:
    """Return the picture. Losses far above the first ones are cut off, so that the fall stays visible.

    >>> "suggestion 0.01" in draw([1e-3, 1e-2, 1e-1], [2.0, 1.0, 90.0], [2.0, 1.0, 90.0], 0.01)
    True
    """
    shown = smoothed or [0.0]
    low, start = min(shown), max(shown[: max(len(shown) // 2, 1)])
    plane = _Plane(rates, low, min(max(shown), low + 1.5 * max(start - low, 1e-12)))
    parts = [*_axes(plane), *_curve(plane, rates, losses, smoothed)]
    if suggestion is not None:
        x = plane.x(suggestion)
        parts.append(f'<path class="chosen" d="M{x} {TOP}V{HEIGHT - BOTTOM}"/>')
        anchor = "end" if x > WIDTH - 150 else "start"
        side = -6 if anchor == "end" else 6
        parts.append(
            f'<text class="name" text-anchor="{anchor}" x="{x + side}" y="{TOP + 12}">'
            f"suggestion {suggestion:.2g}</text>"
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="Loss over the learning rate"><style>{_STYLE}</style>'
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>{"".join(parts)}</svg>\n'
    )


def _axes(plane: _Plane) -> Iterator[str]:
    for power in range(math.ceil(plane.first - 1e-9), math.floor(plane.last + 1e-9) + 1):
        x = plane.x(10.0**power)
        yield f'<path class="line" d="M{x} {TOP}V{HEIGHT - BOTTOM}"/>'
        yield f'<text class="quiet" text-anchor="middle" x="{x}" y="{HEIGHT - BOTTOM + 18}">1e{power}</text>'
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        loss = plane.low + share * (plane.high - plane.low)
        y = plane.y(loss)
        yield f'<path class="line" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>'
        yield f'<text class="quiet" text-anchor="end" x="{LEFT - 8}" y="{y + 4}">{loss:.3g}</text>'
    yield f'<text x="{LEFT}" y="22">loss</text>'
    middle = (LEFT + WIDTH - RIGHT) // 2
    yield f'<text text-anchor="middle" x="{middle}" y="{HEIGHT - 10}">learning rate</text>'


def _curve(
    plane: _Plane, rates: Sequence[float], losses: Sequence[float], smoothed: Sequence[float]
) -> Iterator[str]:
    for rate, loss in zip(rates, losses):
        if math.isfinite(loss):
            yield f'<circle class="each" cx="{plane.x(rate)}" cy="{plane.y(loss)}" r="2"/>'
    points = " ".join(f"{plane.x(rate)},{plane.y(loss)}" for rate, loss in zip(rates, smoothed))
    yield f'<polyline class="loss" points="{points}"/>'
