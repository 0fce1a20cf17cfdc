"""The page as one file: served live without data, or kept with all of its data inside.

Styles and scripts are put inline, and a content security policy allows exactly those texts, by hash. The
data of an archive are compressed JSON in base64, which the browser unpacks by itself.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import os
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template

from flodl.core.files import write_atomic

from .journal.lines import dumps
from .snapshot import Run, picture, snapshot

_STYLES = ("observe/vendor/uPlot.min.css", "monitor/page/base.css", "monitor/page/panels.css")
_SCRIPTS = (
    "observe/vendor/uPlot.iife.min.js",
    *(
        f"monitor/page/{name}.js"
        for name in (
            "format",
            "lines",
            "store",
            "chart",
            "legend",
            "header",
            "metrics",
            "resources",
            "epochs",
            "events",
            "facts",
            "compare",
            "connection",
            "page",
        )
    ),
)
_MOST_ARCHIVED = 8000


def live_page() -> tuple[bytes, str]:
    """Give the page as it is served, and its policy."""
    policy = _policy("'self'")
    return _page(title="flodl", data="", policy=policy).encode(), f"{policy}; frame-ancestors 'none'"


def archive(runs: Sequence[Run], *, most: int = _MOST_ARCHIVED) -> str:
    """Give one page with everything inside: it opens from a disk, with no server and no network."""
    states = []
    for run in runs:
        states.append({**snapshot(run, most=most), "svg": picture(run)})
    data = base64.b64encode(gzip.compress(dumps(states), 6, mtime=0)).decode()
    title = " · ".join(str(state["status"]["name"]) for state in states)
    return _page(title=title, data=data, policy=_policy("'none'"))


def save_html(path: str | os.PathLike[str], runs: Sequence[Run]) -> Path:
    """Write the archive of one run, or of several side by side."""
    return write_atomic(path, archive(runs).encode("utf-8", "backslashreplace"))


def _page(*, title: str, data: str, policy: str) -> str:
    template = Template(_read("monitor/page/page.html"))
    return template.substitute(
        policy=html.escape(policy, quote=True),
        title=html.escape(title),
        styles="\n".join(f"<style>{text}</style>" for text in map(_read, _STYLES)),
        scripts="\n".join(f"<script>{text}</script>" for text in map(_read, _SCRIPTS)),
        data=data,
    )


@cache
def _read(name: str) -> str:
    return files("flodl").joinpath(name).read_text(encoding="utf-8")


@cache
def _policy(connect: str) -> str:
    # A picture is shown as an image, so whatever it holds cannot run; images come from here or from the data.
    return (
        f"default-src 'none'; script-src {_hashes(_SCRIPTS)}; style-src {_hashes(_STYLES)}; "
        f"connect-src {connect}; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'"
    )


def _hashes(names: Sequence[str]) -> str:
    digests = (hashlib.sha256(_read(name).encode()).digest() for name in names)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
