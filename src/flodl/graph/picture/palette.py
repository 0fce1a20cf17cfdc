"""The colors of a picture for light and dark mode, and the scale of the heat map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .model import ClusterKind, Drawing, EdgeKind, Family

HEAT_STEPS = 11


@dataclass(frozen=True)
class Colors:
    """The colors of one element in one mode."""

    fill: str
    stroke: str
    text: str


@dataclass(frozen=True)
class Look:
    """The colors of one element in light and dark mode."""

    light: Colors
    dark: Colors


@dataclass(frozen=True)
class Ink:
    """A text color."""

    light: str
    dark: str


@dataclass(frozen=True)
class Line:
    """An edge: colors, dashes for DOT and for SVG, and whether it runs backwards."""

    light: str
    dark: str
    style: Literal["solid", "dashed", "dotted"] = "solid"
    dashes: str = ""
    width: float = 1.5
    closes: bool = False


def _look(light: str, dark: str) -> Look:
    return Look(Colors(*light.split()), Colors(*dark.split()))


PAGE = _look("#ffffff #e2e8f0 #1e293b", "#161b22 #2a313c #e5eaf2")
MUTED = Ink("#5b6b80", "#9aa8bc")
TAG = Ink("#1d4ed8", "#7cb0ff")
HEAT_MUTED = Ink("#3a4656", "#dde4ee")

FAMILIES: dict[Family, Look] = {
    "input": _look("#dbeafe #5b9bf0 #1e3a8a", "#16285a #3b7ae0 #d6e6ff"),
    "output": _look("#dcfce7 #4cc27a #14532d", "#0c3520 #24a35a #d3f7e0"),
    "layer": _look("#eef2ff #a3b1f5 #1e293b", "#20224e #6670d8 #e5eaf2"),
    "norm": _look("#e9faf1 #82d3ae #1e293b", "#0b332a #1f9e75 #e5eaf2"),
    "activation": _look("#fff4e6 #f7a654 #1e293b", "#3a2611 #cf8434 #e5eaf2"),
    "dropout": _look("#fdf0f7 #eb9bc6 #1e293b", "#3c1730 #c44f93 #e5eaf2"),
    "plain": _look("#f8fafc #b8c4d4 #1e293b", "#1c2739 #51627a #e5eaf2"),
    "merge": _look("#eef2f7 #8fa0b6 #1e293b", "#283548 #6d7f97 #e5eaf2"),
    "route": _look("#e6fbfa #45c4bd #1e293b", "#08332f #16a39a #e5eaf2"),
    "state": _look("#fef6d3 #e0a11b #1e293b", "#3a2d07 #d59a1c #e5eaf2"),
    "port": _look("#64748b #64748b #ffffff", "#94a3b8 #94a3b8 #161b22"),
}

CLUSTERS: dict[ClusterKind, Look] = {
    "graph": _look("#f7f9fc #c3cedd #334155", "#1c232d #3b4654 #cbd5e1"),
    "loop": _look("#faf6ff #cfaef5 #7028b8", "#1d1638 #6f41ab #d3b5fb"),
    "gate": _look("#f2fcfb #79d4cc #0c726b", "#0b2529 #1b7770 #7fe3da"),
    "switch": _look("#f2fcfb #79d4cc #0c726b", "#0b2529 #1b7770 #7fe3da"),
    "map": _look("#f1f9ff #84c6ef #0a669c", "#0b2237 #23709f #8fd3fb"),
}

EDGES: dict[EdgeKind, Line] = {
    "stream": Line("#64748b", "#94a3b8"),
    "ref": Line("#2563eb", "#6ea8ff", "dashed", "6 4"),
    "state": Line("#d97706", "#f5a524", "dotted", "0.1 4.5", 2.2),
    "carry": Line("#d97706", "#f5a524", "dotted", "0.1 4.5", 2.2, closes=True),
    "again": Line("#9333ea", "#b98af5", closes=True),
    "route": Line("#0d9488", "#2dd4bf", "dashed", "6 4"),
}


def heat_of(drawing: Drawing) -> dict[str, int]:
    """Return the step on the heat scale of every box that ran, by path; empty without a profile."""
    seconds = {
        box.path: box.timing.seconds for box in drawing.boxes() if box.timing is not None and box.timing.calls
    }
    top = max(seconds.values(), default=0.0) or 1.0
    return {path: round(value / top * (HEAT_STEPS - 1)) for path, value in seconds.items()}


def _mix(low: str, high: str, share: float) -> str:
    """Mix two colors.

    >>> _mix("#000000", "#ff8000", 0.5)
    '#804000'
    """
    pairs = [(int(low[at : at + 2], 16), int(high[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def _scale(*stops: str) -> list[str]:
    """Interpolate three colors over the steps."""
    middle = (HEAT_STEPS - 1) // 2
    shares = [step / middle for step in range(HEAT_STEPS)]
    return [
        _mix(stops[0], stops[1], share) if share <= 1 else _mix(stops[1], stops[2], share - 1)
        for share in shares
    ]


HEAT: list[Look] = [
    Look(Colors(fill, stroke, "#1e293b"), Colors(dark_fill, dark_stroke, "#f4f6fa"))
    for fill, stroke, dark_fill, dark_stroke in zip(
        _scale("#d3f2dc", "#fff0ad", "#ff9d8f"),
        _scale("#63c384", "#e3b52c", "#dc4332"),
        _scale("#0f4426", "#6b4f06", "#952a1c"),
        _scale("#2f9a58", "#c4951b", "#ef6350"),
    )
]
