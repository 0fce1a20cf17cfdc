"""Assembling a page into one HTML file whose security policy allows exactly its own styles and scripts."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Template

# Every page starts with these and adds its own; the paths are relative to the flodl package.
_HERE = "core/pages"
_STYLES = (f"{_HERE}/vendor/uPlot.min.css", f"{_HERE}/palette.css", f"{_HERE}/frame.css")
_SCRIPTS = (f"{_HERE}/vendor/uPlot.iife.min.js", f"{_HERE}/frame.js", f"{_HERE}/lines.js")


@dataclass(frozen=True)
class Page:
    """The files of a page: the body, which contains `$title` and `$data`, and its own styles and scripts.

    The data cannot run code: the policy allows no other script, and the data is not parsed as markup.
    """

    body: str
    styles: tuple[str, ...]
    scripts: tuple[str, ...]
    images: str = "data:"

    def text(self, *, title: str, data: str, connect: str = "'none'") -> str:
        """Return the HTML; `connect` is the source that the open page may fetch data from."""
        body = Template(_read(self.body)).substitute(title=html.escape(title), data=data)
        return Template(_read(f"{_HERE}/frame.html")).substitute(
            policy=html.escape(self.policy(connect), quote=True),
            title=html.escape(title),
            styles="\n".join(f"<style>{_read(name)}</style>" for name in (*_STYLES, *self.styles)),
            body=body,
            scripts="\n".join(f"<script>{_read(name)}</script>" for name in (*_SCRIPTS, *self.scripts)),
        )

    def policy(self, connect: str = "'none'") -> str:
        """Return the content security policy of the page."""
        scripts, styles = _hashes((*_SCRIPTS, *self.scripts)), _hashes((*_STYLES, *self.styles))
        return (
            f"default-src 'none'; script-src {scripts}; style-src {styles}; connect-src {connect}; "
            f"img-src {self.images}; base-uri 'none'; form-action 'none'"
        )


def embedded(data: object) -> str:
    """Return data as JSON that cannot close the script element around it.

    >>> embedded({"name": "</script>"})
    '{"name":"\\\\u003c/script>"}'
    """
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


@cache
def _read(name: str) -> str:
    return files("flodl").joinpath(name).read_text(encoding="utf-8")


@cache
def _hashes(names: Sequence[str]) -> str:
    digests = (hashlib.sha256(_read(name).encode()).digest() for name in names)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
