"""The timeline of ranks as a picture without scripts: one lane for each rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from .slices import Slice, thin, thin_syncs
from .text import facts, rank_rows

WIDTH, LEFT, RIGHT, TOP = 1000, 150, 16, 46
_LANE, _BAR, _PACE = 50, 20, 14
_MAX_SLICES, _MAX_SYNCS = 700, 250
_KINDS = (
    ("compute", "computing"),
    ("reduce", "reducing"),
    ("wait", "waiting"),
    ("pause", "paused (evaluation, saving)"),
)
_STEPS_S = (0.001, 0.01, 0.1, 1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 21600, 86400, 604800)
_STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1b2230; }
.quiet { fill: #5b6474; font-size: 11px; } .ground { fill: #ffffff; } .line { stroke: #e1e4ea; }
.compute { fill: #2b62e0; } .reduce { fill: #7a45d6; } .wait { fill: #e0a62a; } .pause { fill: #dfe3ea; }
.sync { stroke: #0d8296; stroke-width: 1.5; } .pace { stroke: #16855a; stroke-width: 1.5; fill: none; }
.lost { stroke: #c43333; stroke-width: 2; fill: none; } .joined { fill: #16855a; }
@media (prefers-color-scheme: dark) {
text { fill: #e6e9ef; } .quiet { fill: #98a2b3; } .ground { fill: #161b22; } .line { stroke: #2a313c; }
.compute { fill: #6f9dff; } .reduce { fill: #b48cff; } .wait { fill: #e8b93c; } .pause { fill: #2a313c; }
.sync { stroke: #3fc3d9; } .pace { stroke: #43c68f; } .lost { stroke: #ff7b72; } .joined { fill: #43c68f; }
}
"""


class Axis:
    """Positions on the horizontal axis for times between two moments."""

    def __init__(self, start_s: float, end_s: float) -> None:
        self.start_s, self.end_s = start_s, max(end_s, start_s + 1e-3)

    def x(self, time_s: float) -> float:
        share = (time_s - self.start_s) / (self.end_s - self.start_s)
        return round(LEFT + min(max(share, 0.0), 1.0) * (WIDTH - LEFT - RIGHT), 1)

    def ticks(self) -> list[float]:
        """Return seconds since the start, at most about eight."""
        span_s = self.end_s - self.start_s
        step_s = next((step for step in _STEPS_S if span_s / step <= 8), span_s / 4)
        return [index * step_s for index in range(int(span_s / step_s) + 1)]


def timeline_svg(found: Mapping[str, Any]) -> str:
    """Return the picture of the data of a `RankHistory`."""
    rows: Sequence[Mapping[str, Any]] = found["ranks"]
    slices = {
        row["rank"]: [tuple(each) for each in found["slices"].get(str(row["rank"]), [])] for row in rows
    }
    starts = [lane[0][0] for lane in slices.values() if lane]
    ends = [lane[-1][1] for lane in slices.values() if lane]
    axis = Axis(min(starts, default=0.0), max(ends, default=0.0))
    bottom = TOP + _LANE * len(rows)
    most_batches = max((point[1] for line in found["pace"].values() for point in line), default=0.0)
    parts = [*_legend(), *_syncs(found["syncs"], axis), *_axis(axis, bottom)]
    for index, row in enumerate(rows):
        y = TOP + _LANE * index
        parts += _lane(row, slices[row["rank"]], axis, y, found["syncs"])
        points, end_s = found["pace"].get(str(row["rank"]), []), row["ended_s"] or axis.end_s
        parts += _pace(points, axis, y + _BAR + 22, most_batches, axis.x(end_s))
    height = bottom + 40
    label = f"Timeline of {len(rows)} ranks"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{label}"><style>{_STYLE}</style><rect class="ground" width="{WIDTH}" '
        f'height="{height}" rx="8"/>{"".join(parts)}</svg>\n'
    )


def _legend() -> Iterable[str]:
    x = LEFT
    for name, label in _KINDS:
        yield f'<rect class="{name}" x="{x}" y="12" width="11" height="11" rx="2"/>'
        yield f'<text class="quiet" x="{x + 16}" y="22">{label}</text>'
        x += 30 + round(6.2 * len(label))
    yield f'<path class="sync" d="M{x + 4} 11v13"/><text class="quiet" x="{x + 11}" y="22">sync</text>'
    x += 54
    yield f'<path class="pace" d="M{x} 20h7v-6h7"/>'
    yield f'<text class="quiet" x="{x + 20}" y="22">batches between two syncs</text>'


def _syncs(marks: Sequence[Sequence[float]], axis: Axis) -> Iterable[str]:
    shown = thin_syncs([(time_s, int(count)) for time_s, count in marks], _MAX_SYNCS)
    yield f'<text class="quiet" x="12" y="{TOP - 8}">{sum(count for _, count in shown)} syncs</text>'
    if shown:
        yield f'<path class="sync" d="{"".join(f"M{axis.x(time_s)} {TOP - 16}v10" for time_s, _ in shown)}"/>'


def _lane(
    row: Mapping[str, Any], lane: Sequence[Any], axis: Axis, y: int, syncs: Sequence[Sequence[float]]
) -> Iterable[str]:
    where = " · ".join(escape(str(text)) for text in (row["device"], row["host"]) if text)
    yield f'<text x="12" y="{y + 15}">rank {row["rank"]}</text>'
    yield f'<text class="quiet" x="12" y="{y + 30}">{where[:24]}</text>'
    paths: dict[str, list[str]] = {name: [] for name, _ in _KINDS}
    for each in thin(lane, _MAX_SLICES):
        for name, path in _boxes(each, axis, y):
            paths[name].append(path)
    for name, found in paths.items():
        if found:
            yield f'<path class="{name}" d="{"".join(found)}"/>'
    if not lane:
        return
    if syncs and row["joined_s"] > syncs[0][0]:
        x = axis.x(row["joined_s"])
        yield f'<path class="joined" d="M{x - 5} {y - 3}h10l-5 8z"><title>joined</title></path>'
    if row["lost"]:
        x = axis.x(row["ended_s"] or lane[-1][1])
        yield f'<path class="lost" d="M{x - 5} {y + 5}l10 10m0 -10l-10 10">'
        yield f"<title>lost: {escape(row['lost'])}</title></path>"


def _boxes(each: Slice, axis: Axis, y: int) -> Iterable[tuple[str, str]]:
    """Yield the parts of a slice on top of each other: the height is the share of the time."""
    start_s, end_s, compute_s, reduce_s, wait_s = each
    whole_s = max(end_s - start_s, compute_s + reduce_s + wait_s) or 1.0
    pause_s = whole_s - compute_s - reduce_s - wait_s
    x, width = axis.x(start_s), round(axis.x(end_s) - axis.x(start_s), 1)
    low = float(y + _BAR)
    for (name, _), spent_s in zip(_KINDS, (compute_s, reduce_s, wait_s, pause_s)):
        height = round(_BAR * spent_s / whole_s, 1)
        if height >= 0.1 and width > 0:
            low -= height
            yield name, f"M{x} {round(low, 1)}h{width}v{height}h-{width}z"


def _pace(
    points: Sequence[Sequence[float]], axis: Axis, low: int, most: float, right: float
) -> Iterable[str]:
    if not points or not most:
        return
    heights = [(axis.x(time_s), round(low - _PACE * batches / most, 1)) for time_s, batches in points]
    steps = "".join(f"H{x}V{y}" for x, y in heights[1:])
    yield f'<path class="pace" d="M{heights[0][0]} {heights[0][1]}{steps}H{right}">'
    yield f"<title>{points[-1][1]:g} batches between the last two syncs</title></path>"


def _axis(axis: Axis, bottom: int) -> Iterable[str]:
    for seconds in axis.ticks():
        x = axis.x(axis.start_s + seconds)
        yield f'<path class="line" d="M{x} {TOP - 4}V{bottom + 6}"/>'
        yield f'<text class="quiet" x="{x}" y="{bottom + 22}" text-anchor="middle">{_label(seconds)}</text>'


def _label(seconds: float) -> str:
    """Return a time for the axis.

    >>> _label(0.02), _label(5), _label(90), _label(7260)
    ('0.02 s', '5 s', '1:30', '2:01:00')
    """
    if seconds < 60:
        return f"{seconds:.4g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def timeline_html(found: Mapping[str, Any], *, title: str = "Ranks") -> str:
    """Return the picture with its numbers as a page, without scripts."""
    heads, rows = rank_rows(found)
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    numbers = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts(found)
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{_PAGE_STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f'<dl>{numbers}</dl><div class="scroll">{timeline_svg(found)}</div>'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        "</body></html>\n"
    )


_PAGE_STYLE = """
:root { color-scheme: light dark; }
body { margin: 0; padding: 20px; background: light-dark(#f4f5f7, #0e1116);
  color: light-dark(#1b2230, #e6e9ef); font: 14px/1.45 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { margin: 0 0 12px; font-size: 18px; }
dl { display: flex; flex-wrap: wrap; gap: 6px 26px; margin: 0 0 16px; }
dt { font-size: 12px; color: light-dark(#5b6474, #98a2b3); } dd { margin: 0; font-weight: 600; }
.scroll { overflow-x: auto; margin-bottom: 16px; } svg { display: block; min-width: 720px; }
table { border-collapse: collapse; font-size: 13px; white-space: nowrap; }
th, td { padding: 4px 16px 4px 0; text-align: left; border-bottom: 1px solid light-dark(#e1e4ea, #2a313c); }
th { font-weight: 500; color: light-dark(#5b6474, #98a2b3); }
"""
