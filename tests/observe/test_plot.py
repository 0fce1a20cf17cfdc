"""The HTML of the page: self-contained, escaped, with a policy that matches its scripts."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser

from flodl.observe import page
from flodl.observe.plot import chart_data

EVIL = "</script><script>alert(1)</script>"


class Parsed(HTMLParser):
    """Collect the scripts, the styles and every address of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {"script": [], "style": [], "title": [], "h1": []}
        self.addresses: list[str] = []
        self.policy = ""
        self.data = ""
        self._open: tuple[str, dict[str, str | None]] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.addresses += [value or "" for key, value in attrs if key in ("src", "href", "srcset", "action")]
        if named.get("http-equiv") == "Content-Security-Policy":
            self.policy = named["content"] or ""
        self._open = (tag, named)

    def handle_endtag(self, tag: str) -> None:
        self._open = None

    def handle_data(self, data: str) -> None:
        tag, named = self._open or ("", {})
        if named.get("id") == "data":
            self.data += data
        elif tag in self.texts:
            self.texts[tag].append(data)


def test_the_page_loads_nothing_from_outside() -> None:
    parsed = Parsed(page({"loss": {0: 1.0}}))
    assert parsed.addresses == ["data:,"]
    assert parsed.policy.startswith("default-src 'none'; ")
    assert not re.search(r"@import|url\(", "".join(parsed.texts["style"]))
    assert not re.search(r"fetch\(|XMLHttpRequest|WebSocket|import\(", "".join(parsed.texts["script"]))


def test_the_policy_allows_exactly_the_scripts_and_styles_of_the_page() -> None:
    parsed = Parsed(page({EVIL: {0: 1.0}}, title=EVIL))
    for tag in ("script", "style"):
        allowed = re.search(rf"{tag}-src ([^;]*);", parsed.policy)
        assert allowed is not None
        hashes = [
            f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
            for text in parsed.texts[tag]
        ]
        assert allowed[1].split() == hashes
    assert len(parsed.texts["script"]) == 7


def test_names_and_titles_are_escaped() -> None:
    text = page({EVIL: {0: 1.0}}, title="<img src=x onerror=alert(1)>$policy & co")
    parsed = Parsed(text)
    assert "alert(1)" not in "".join(parsed.texts["script"])
    assert parsed.texts["h1"] == ["<img src=x onerror=alert(1)>$policy & co"]
    assert json.loads(parsed.data)["series"][0]["name"] == EVIL


def test_gaps_are_null_and_numbers_that_are_not_finite_keep_their_names() -> None:
    data = chart_data({"a": {0: 1.0, 1: math.nan, 2: -math.inf}, "b": {2: 2.5}})
    assert data["epochs"] == [1, 2, 3]
    assert [line["values"] for line in data["series"]] == [[1.0, "nan", "-inf"], [None, None, 2.5]]
    assert (
        Parsed(page({"a": {0: math.inf}})).data == '{"epochs":[1],"series":[{"name":"a","values":["inf"]}]}'
    )


def test_a_gap_in_every_series_breaks_the_lines_once() -> None:
    assert chart_data({"a": {0: 1.0, 1_000_000: 2.0}}) == {
        "epochs": [1, 2, 1_000_001],
        "series": [{"name": "a", "values": [1.0, None, 2.0]}],
    }
