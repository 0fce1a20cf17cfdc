"""A self-contained HTML page that plots histories."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from flodl.core.pages import Page, embedded

PAGE = Page(
    body="observe/page/page.html",
    styles=("core/pages/sheet.css", "observe/page/page.css"),
    scripts=tuple(f"observe/page/{name}.js" for name in ("data", "chart", "legend", "page")),
)


def page(histories: Mapping[str, Mapping[int, float]], *, title: str = "Training trends") -> str:
    """Return an interactive HTML page with a line per history.

    >>> text = page({"</script>": {0: 1.0}}, title="<b>run</b>")
    >>> "&lt;b&gt;run&lt;/b&gt;" in text, '"\\\\u003c/script>"' in text
    (True, True)
    """
    return PAGE.text(title=title, data=embedded(chart_data(histories)))


def chart_data(histories: Mapping[str, Mapping[int, float]]) -> dict[str, Any]:
    """Return the data of the page: epochs counted from 1 and, for each name, a value or None per epoch.

    A gap in which no metric has a value is represented by one empty epoch, so that the lines break there:

    >>> chart_data({"loss": {0: 3.0, 1: 2.0, 9: 1.0}})
    {'epochs': [1, 2, 3, 10], 'series': [{'name': 'loss', 'values': [3.0, 2.0, None, 1.0]}]}
    """
    known = sorted({epoch for history in histories.values() for epoch in history})
    breaks = {before + 1 for before, after in pairwise(known) if after > before + 1}
    epochs = sorted({*known, *breaks})
    return {
        "epochs": [epoch + 1 for epoch in epochs],
        "series": [
            {"name": name, "values": [_plain(history.get(epoch)) for epoch in epochs]}
            for name, history in histories.items()
        ],
    }


def _plain(value: float | None) -> float | str | None:
    # JSON has neither NaN nor infinity: the page gets their names and marks them at the edge.
    if value is None or math.isfinite(value):
        return value
    return str(float(value))
