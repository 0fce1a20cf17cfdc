"""The text of boxes and headings, and its size."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Literal

from flodl.core.formats import format_count

from ..profile.profile import format_share, format_timing
from .model import Box, Cluster, Drawing, Timing

Tone = Literal["title", "settings", "small", "tag", "time"]
Words = list[tuple[Tone, str]]

SIZES: dict[Tone, float] = {"title": 13.0, "settings": 12.0, "small": 11.0, "tag": 11.0, "time": 11.0}
BOLD: frozenset[Tone] = frozenset({"title", "time"})
GAP = 6.0
_LINE_HEIGHT = {True: 18.0, False: 15.0}
_TAGS_PER_LINE = 3

# Advance widths of DejaVu Sans in thousandths of its size: the widest of the usual interface fonts, so that
# text fits its box whichever font the viewer has.
_WIDTHS = {
    **dict.fromkeys("Iijl'", 285),
    **dict.fromkeys(" ,./:;\\|·", 330),
    **dict.fromkeys("fr()[]t!-", 400),
    **dict.fromkeys('sz_*"?`c', 530),
    **dict.fromkeys("LPFTYvxykaeo", 605),
    **dict.fromkeys("bdghnpqu0123456789$BCESAVXZRK{}µΣ", 665),
    **dict.fromkeys("DGHNUOQ", 775),
    **dict.fromkeys("#+<=>^~w→×↻≤&M", 845),
    **dict.fromkeys("mW@%…", 985),
}
_BOLDER = 1.13


@dataclass(frozen=True)
class Size:
    """The size of a box in pixels."""

    width: float
    height: float


def text_width(text: str, tone: Tone) -> float:
    """Return an upper estimate of the width of a text.

    >>> round(text_width("Linear", "title")), round(text_width("Linear", "small"))
    (46, 35)
    """
    width = sum(
        _WIDTHS.get(letter) or (1000 if unicodedata.east_asian_width(letter) in "WF" else 750)
        for letter in text
    )
    return width / 1000 * SIZES[tone] * (_BOLDER if tone in BOLD else 1.0)


def words_width(words: Words) -> float:
    """Return the width of texts in one line."""
    return sum(text_width(text, tone) for tone, text in words) + GAP * max(0, len(words) - 1)


def line_height(words: Words) -> float:
    """Return the height of a line; a line with a title is taller."""
    return _LINE_HEIGHT[any(tone == "title" for tone, _ in words)]


def box_words(box: Box) -> list[Words]:
    """Return the lines of a box."""
    first: Words = [("title", box.title)] if box.title else []
    if box.settings:
        first.append(("settings", box.settings))
    lines = [first]
    for start in range(0, len(box.tags), _TAGS_PER_LINE):
        lines.append([("tag", f"#{tag}") for tag in box.tags[start : start + _TAGS_PER_LINE]])
    if size := parameter_words(box):
        lines.append([("small", size)])
    if box.timing is not None:
        lines.append(_timing_words(box.timing))
    return [line for line in lines if line]


def heading_words(cluster: Cluster) -> list[Words]:
    """Return the heading of a cluster: one line, and another one for its time."""
    words: Words = [("title", cluster.title)]
    if cluster.settings:
        words.append(("settings", cluster.settings))
    words += [("tag", f"#{tag}") for tag in cluster.tags]
    size: Words = [("small", text)] if (text := parameter_words(cluster)) else []
    if cluster.timing is None:
        return [words + size]
    return [words, size + _timing_words(cluster.timing)]


def parameter_words(item: Box | Cluster) -> str:
    """Return the number of parameters as text, and whether they are frozen."""
    if not item.num_parameters:
        return ""
    plural = "s" if item.num_parameters != 1 else ""
    return f"{format_count(item.num_parameters)} param{plural}" + (", frozen" if item.frozen else "")


def total_words(drawing: Drawing) -> str:
    """Return the total time as text; empty without a profile."""
    if drawing.total_s is None:
        return ""
    return f"Forward: {format_timing(drawing.total_s)} on {drawing.device}"


def box_size(box: Box) -> Size:
    """Return the size of a box; a joint without other text is a circle, an unnamed input a dot."""
    lines = box_words(box)
    if not lines:
        return Size(9, 9)
    if is_circle(box):
        return Size(28, 28)
    width = max(words_width(line) for line in lines) + (32 if is_round(box) else 24)
    height = sum(line_height(line) for line in lines) + 12
    return Size(round(max(width, 44.0), 1), height)


def is_circle(box: Box) -> bool:
    """Return whether a box is a symbol in a circle."""
    return box.family == "merge" and len(box.title) == 1 and not box.tags and box.timing is None


def is_round(box: Box) -> bool:
    """Return whether a box has semicircular sides."""
    return box.family in ("input", "output", "activation", "merge", "state", "port")


def _timing_words(timing: Timing) -> Words:
    if not timing.calls:
        return [("small", "not run")]
    words: Words = [("time", format_timing(timing.seconds)), ("small", format_share(timing.share))]
    if timing.calls > 1:
        words.append(("small", f"×{timing.calls}"))
    return words
