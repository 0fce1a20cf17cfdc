"""The timeline of a run as a picture: what each rank did, from slice to slice."""

from __future__ import annotations

import html
from typing import Any

WIDTH, HEIGHT, LEFT = 900, 18, 60
# Training, reducing, waiting; what is left of a slice is evaluation and saving in the calling process.
COLORS = ("#2a8a4a", "#c77f1a", "#c9cdd4")
NAMES = ("training", "reducing", "waiting")


def timeline(run: dict[str, Any], most_s: float = 60.0) -> str:
    """Return a figure with a row per rank, of the first minute at most."""
    slices: dict[str, list[list[float]]] = run["timeline"]
    end_s = min(most_s, max((own[-1][1] for own in slices.values() if own), default=0.0))
    if not end_s:
        return ""
    rows = []
    for index, (rank, own) in enumerate(sorted(slices.items(), key=lambda pair: int(pair[0]))):
        y = index * (HEIGHT + 4)
        rows.append(f'<text x="0" y="{y + 13}" font-size="12" fill="currentColor">rank {rank}</text>')
        rows += [bar for each in own if each[0] < end_s for bar in _bars(each, y, WIDTH / end_s)]
    height = len(slices) * (HEIGHT + 4)
    legend = ", ".join(f'<span style="color:{color}">■</span> {name}' for color, name in zip(COLORS, NAMES))
    name = f"{run['model']}, {run['policy']}, {run['ranks']} ranks: the first {end_s:.1f} s"
    svg = f'<svg width="{LEFT + WIDTH}" height="{height}">{"".join(rows)}</svg>'
    return f"<figure>{svg}<figcaption>{html.escape(name)}; {legend}</figcaption></figure>"


def _bars(found: list[float], y: int, scale: float) -> list[str]:
    start, _, *parts = found
    bars = []
    for seconds, color, name in zip(parts, COLORS, NAMES):
        if seconds > 0.0:
            x, width = LEFT + start * scale, max(0.5, seconds * scale)
            bars.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{HEIGHT}" fill="{color}">'
                f"<title>{name} {seconds:.3f} s</title></rect>"
            )
        start += seconds
    return bars
