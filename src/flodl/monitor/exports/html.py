"""The page as one file: served live without data, or saved with its data inside.

The data of an archive is gzipped JSON in base64, which the browser unpacks by itself.
"""

from __future__ import annotations

import base64
import gzip
import os
from collections.abc import Sequence
from pathlib import Path

from flodl.core.pages import Page

from ..journal import dumps
from ..snapshot import Run, graph_svg, snapshot
from .files import write_export

_SCRIPTS = (
    "format",
    "lines",
    "store",
    "touch",
    "chart",
    "legend",
    "header",
    "metrics",
    "resources",
    "epochs",
    "events",
    "facts",
    "rank_store",
    "lanes",
    "rank_work",
    "compare",
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


def live_page() -> tuple[bytes, str]:
    """Return the page without data, and its content security policy."""
    text = PAGE.text(title="flodl", data="", connect=_OWN_SERVER)
    return text.encode(), f"{PAGE.policy(_OWN_SERVER)}; frame-ancestors 'none'"


def archive(runs: Sequence[Run], *, max_points: int = _MAX_POINTS) -> str:
    """Return a page that contains all of its data; it opens from disk, without a server or a network."""
    states = [{**snapshot(run, max_points=max_points), "svg": graph_svg(run)} for run in runs]
    data = base64.b64encode(gzip.compress(dumps(states), 6, mtime=0)).decode()
    return PAGE.text(title=" · ".join(str(state["status"]["name"]) for state in states), data=data)


def save_html(path: str | os.PathLike[str], runs: Sequence[Run]) -> Path:
    """Write the archive of one run, or of several runs for comparison."""
    return write_export(path, archive(runs))
