"""The page as one file: served live without data, or kept with all of its data inside.

The data of an archive are compressed JSON in base64, which the browser unpacks by itself.
"""

from __future__ import annotations

import base64
import gzip
import os
from collections.abc import Sequence
from pathlib import Path

from flodl.core.files import write_atomic
from flodl.core.pages import Page

from .journal.lines import dumps
from .snapshot import Run, picture, snapshot

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
    "compare",
    "layout",
    "connection",
    "page",
)
_PAGE = Page(
    body="monitor/page/page.html",
    styles=("monitor/page/base.css", "monitor/page/panels.css"),
    scripts=tuple(f"monitor/page/{name}.js" for name in _SCRIPTS),
    # A picture is shown as an image, so whatever it holds cannot run; it comes from here or from the data.
    images="'self' data: blob:",
)
_OWN_SERVER = "'self'"
_MOST_ARCHIVED = 8000


def live_page() -> tuple[bytes, str]:
    """Give the page as it is served, and its policy."""
    text = _PAGE.text(title="flodl", data="", connect=_OWN_SERVER)
    return text.encode(), f"{_PAGE.policy(_OWN_SERVER)}; frame-ancestors 'none'"


def archive(runs: Sequence[Run], *, most: int = _MOST_ARCHIVED) -> str:
    """Give one page with everything inside: it opens from a disk, with no server and no network."""
    states = [{**snapshot(run, most=most), "svg": picture(run)} for run in runs]
    data = base64.b64encode(gzip.compress(dumps(states), 6, mtime=0)).decode()
    return _PAGE.text(title=" · ".join(str(state["status"]["name"]) for state in states), data=data)


def save_html(path: str | os.PathLike[str], runs: Sequence[Run]) -> Path:
    """Write the archive of one run, or of several side by side."""
    return write_atomic(path, archive(runs).encode("utf-8", "backslashreplace"))
