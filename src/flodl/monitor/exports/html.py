"""The page as one file: served live without data, or saved with its data inside.

The data of an archive is gzipped JSON in base64, which the browser unpacks by itself.
"""

from __future__ import annotations

import base64
import gzip
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flodl.core.pages import Page

from ..journal import Reader, dumps
from ..snapshot import Focus, Run, compare, graph_svg, snapshot, summary
from .files import write_export

_SCRIPTS = (
    "format",
    "lines",
    "store",
    "touch",
    "axes",
    "chart",
    "legend",
    "header",
    "metrics",
    "resources",
    "epochs",
    "classes",
    "events",
    "facts",
    "rank_store",
    "lanes",
    "rank_work",
    "compare",
    "runs_table",
    "run_filter",
    "parallel",
    "compare_page",
    "layout",
    "connection",
    "page",
)
PAGE = Page(
    body="monitor/page/page.html",
    styles=("monitor/page/base.css", "monitor/page/panels.css"),
    scripts=tuple(f"monitor/page/{name}.js" for name in _SCRIPTS),
    # The graph is shown as an image, so its content cannot run; it comes from the server or from the data.
    images="'self' data: blob:",
)
_OWN_SERVER = "'self'"
_MAX_POINTS = 8000
_MAX_TOTAL_POINTS, _MIN_POINTS = 48_000, 200
_MAX_TITLES = 4


def live_page() -> tuple[bytes, str]:
    """Return the page without data, and its content security policy."""
    text = PAGE.text(title="flodl", data="", connect=_OWN_SERVER)
    return text.encode(), f"{PAGE.policy(_OWN_SERVER)}; frame-ancestors 'none'"


def archive(runs: Sequence[Run], *, max_points: int = _MAX_POINTS, focus: Focus | None = None) -> str:
    """Return a page that contains all of its data; it opens from disk, without a server or a network.

    The points of many runs are reduced, so that the file stays small.
    """
    max_points = max(min(max_points, _MAX_TOTAL_POINTS // max(len(runs), 1)), _MIN_POINTS)
    readers = [Reader.of(run) for run in runs]
    states = [
        {**snapshot(reader, max_points=max_points), "svg": graph_svg(reader), "run": number}
        for number, reader in enumerate(readers)
    ]
    contents: dict[str, Any] = {"states": states}
    if len(runs) > 1:
        compared = compare([summary(reader, modes=(focus or Focus()).modes) for reader in readers], focus)
        for number, run in enumerate(compared["runs"]):
            run |= {"run": number, "folder": ""}
        contents["comparison"] = compared
    data = base64.b64encode(gzip.compress(dumps(contents), 6, mtime=0)).decode()
    return PAGE.text(title=_title([str(state["status"]["name"]) for state in states]), data=data)


def _title(names: Sequence[str]) -> str:
    return " · ".join(names) if len(names) <= _MAX_TITLES else f"{len(names)} runs"


def save_html(path: str | os.PathLike[str], runs: Sequence[Run], *, focus: Focus | None = None) -> Path:
    """Write the archive of one run, or of several runs for comparison."""
    return write_export(path, archive(runs, focus=focus))
