"""One self-contained page that draws histories: no network, no build step, nothing to install.

The page's own files lie in `page/`, the chart library in `vendor/`; all are put inline. A content
security policy allows exactly those texts, by hash, so nothing that comes with the data can run.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import pairwise
from string import Template
from typing import Any

_STYLES = ("vendor/uPlot.min.css", "page/page.css")
_SCRIPTS = ("vendor/uPlot.iife.min.js", "page/data.js", "page/chart.js", "page/legend.js", "page/page.js")


def page(histories: Mapping[str, Mapping[int, float]], *, title: str = "Training trends") -> str:
    """Give the text of an interactive page with a line for each history.

    >>> text = page({"</script>": {0: 1.0}}, title="<b>run</b>")
    >>> "&lt;b&gt;run&lt;/b&gt;" in text, '"\\\\u003c/script>"' in text
    (True, True)
    """
    styles, scripts = _read(_STYLES), _read(_SCRIPTS)
    template = Template(_read(["page/page.html"])[0])
    return template.substitute(
        policy=_policy(styles, scripts),
        title=html.escape(title),
        styles="\n".join(f"<style>{text}</style>" for text in styles),
        scripts="\n".join(f"<script>{text}</script>" for text in scripts),
        data=_embedded(chart_data(histories)),
    )


def chart_data(histories: Mapping[str, Mapping[int, float]]) -> dict[str, Any]:
    """Give what the page draws: epochs from 1 and, for each name, a value or None at each of them.

    Where no metric at all has a value, one empty epoch stands in, so that the lines break there:

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
    # JSON has no NaN and no infinity: their names travel, and the page marks them at the edge.
    if value is None or math.isfinite(value):
        return value
    return str(float(value))


def _embedded(data: object) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _read(names: Sequence[str]) -> list[str]:
    return [files("flodl.observe").joinpath(name).read_text(encoding="utf-8") for name in names]


def _policy(styles: Sequence[str], scripts: Sequence[str]) -> str:
    return (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hashes(texts: Sequence[str]) -> str:
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
