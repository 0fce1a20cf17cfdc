"""The results as an SVG bar chart for light and dark pages; longer is faster."""

from __future__ import annotations

from html import escape
from typing import Any

from rivals import RIVALS
from standings import geometric_mean, in_common, milliseconds, present, speedup

WIDTH, LEFT, RIGHT, TOP = 900, 150, 96, 84
BAR, GAP = 11, 16
COLORS = {
    "reference": ("#94a3b8", "#7688a1"),
    "matched": ("#64748b", "#a8b5c8"),
    "compile": ("#c4a7f5", "#9d7be0"),
    "reduce_overhead": ("#8b5cf6", "#b79bfa"),
    "lightning": ("#e8a33d", "#d9932a"),
    "jax": ("#3b95d9", "#58aeee"),
    "flodl": ("#12924f", "#34c77b"),
    "flodl_compiled": ("#0b6b39", "#7fe3ad"),
}
Bar = tuple[str, float | None, str]


def chart(results: dict[str, Any]) -> str:
    """Draw each rival's speedup over torch eager per model, and the means over models that all ran."""
    groups = _groups(results)
    longest = max((length or 1.0) for _, bars in groups for _, length, _ in bars)
    scale = (WIDTH - LEFT - RIGHT) / longest
    parts, y = [], TOP
    for name, bars in groups:
        parts.append(_text(LEFT - 12, y + BAR * len(bars) / 2 + 4, name, "ink strong", "end"))
        for rival, length, label in bars:
            if length is not None:
                parts.append(
                    f'<rect class="{rival}" x="{LEFT}" y="{y + 1}" width="{length * scale:.1f}" '
                    f'height="{BAR - 2}" rx="2"><title>{escape(RIVALS[rival].label)}: {label}</title></rect>'
                )
            # If a bar ends before the line of eager, its label is placed after the line.
            x = LEFT + (0 if length is None else max(length, 1.0) * scale) + 5
            parts.append(
                _text(x, y + BAR - 2.5, label, "ink" if rival.startswith("flodl") else "muted", size=9)
            )
            y += BAR
        y += GAP
    eager = LEFT + scale
    line = f'<line class="axis" x1="{eager:.1f}" x2="{eager:.1f}" y1="{TOP - 8}" y2="{y - GAP + 4}"/>'
    return "\n".join([*_head(results, y), line, *parts, "</svg>"]) + "\n"


def _groups(results: dict[str, Any]) -> list[tuple[str, list[Bar]]]:
    rivals = present(results)
    groups: list[tuple[str, list[Bar]]] = []
    for name, model in results["models"].items():
        bars = []
        for rival in rivals:
            ms = milliseconds(model, rival)
            bars.append((rival, speedup(model, rival), "—" if ms is None else f"{ms:.1f} ms"))
        groups.append((name, bars))
    means: list[Bar] = []
    for rival in rivals:
        mean = geometric_mean(speedup(model, rival) for model in in_common(results))
        means.append((rival, mean and mean[0], f"{mean[0]:.2f}× of {mean[1]}" if mean else "—"))
    return [*groups, ("geometric mean", means)] if len(groups) > 1 else groups


def _head(results: dict[str, Any], height: float) -> list[str]:
    machine = results["machine"]
    on = machine.get("gpu", machine["cpu"]) if results["settings"]["device"] != "cpu" else machine["cpu"]
    light = "".join(f".{name}{{fill:{pair[0]}}}" for name, pair in COLORS.items())
    dark = "".join(f".{name}{{fill:{pair[1]}}}" for name, pair in COLORS.items())
    style = (
        "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,Arial,sans-serif}"
        f".page{{fill:#fff}}.ink{{fill:#1e293b}}.muted{{fill:#5b6b80}}.strong{{font-weight:600}}"
        f".axis{{stroke:#5b6b80;stroke-dasharray:3 3}}{light}"
        "@media (prefers-color-scheme: dark){"
        f".page{{fill:#0f172a}}.ink{{fill:#e5eaf2}}.muted{{fill:#9fb0c6}}.axis{{stroke:#9fb0c6}}{dark}}}"
    )
    title = "Speed of a training epoch over torch eager (longer is faster)"
    facts = f"{on} · torch {machine['torch']} · {machine['date']} · commit {machine['commit']}"
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{WIDTH}" height="{height:.0f}" '
        f'viewBox="0 0 {WIDTH} {height:.0f}">',
        f"<title>{title}</title>",
        f"<style>{style}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height:.0f}" rx="10"/>',
        _text(18, 26, title, "ink strong", size=14),
        _text(18, 43, facts, "muted", size=10),
    ]
    x = 18.0
    for rival in present(results):
        label = RIVALS[rival].label
        head.append(f'<rect class="{rival}" x="{x:.0f}" y="54" width="10" height="10" rx="2"/>')
        head.append(_text(x + 14, 63, label, "ink", size=11))
        x += 24 + 6.0 * len(label)
    return head


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )
