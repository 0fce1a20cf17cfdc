"""The trend page in a real browser: silent console, no requests, names as text, working controls."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flodl.observe import plot_html

EVIL = "</script><script>alert(1)</script>"


class Visit:
    """One page, with everything that it said and asked for."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", lambda dialog: (self.said.append("dialog"), dialog.dismiss()))
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto(address)
        self.asked.remove(address)

    def visible(self) -> list[str]:
        return self.page.locator(".entry[aria-pressed=true] .label").all_text_contents()


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1100, "height": 700})

    def open_page(histories: dict[str, dict[int, float]]) -> Visit:
        path = plot_html(tmp_path / "trends.html", histories, title="<b>run</b>")
        return Visit(page, path.as_uri())

    yield open_page
    page.close()


def test_the_page_works_in_silence_and_without_requests(visit) -> None:
    seen = visit(
        {
            EVIL: {0: 1.0, 1: 0.5, 3: 0.25},
            "encoder.loss": {0: 2.0, 1: math.nan, 2: 1.0},
            "encoder.scan.loss": {0: 3.0, 2: 1.5},
        }
    )
    page = seen.page
    assert page.locator("h1").text_content() == "<b>run</b>"
    assert seen.visible() == [EVIL, "loss", "scan.loss"]
    assert page.locator(".group h3").all_text_contents() == ["encoder"]

    entry = page.locator(".entry")
    entry.nth(1).click()
    assert seen.visible() == ["loss"]
    entry.nth(1).click()
    assert len(seen.visible()) == 3
    entry.nth(1).click(modifiers=["Shift"])
    assert seen.visible() == [EVIL, "scan.loss"]
    page.locator(".group h3 button").click()
    assert seen.visible() == ["loss", "scan.loss"]
    page.locator("#show-all").click()

    page.locator("#chart").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#readout h2").text_content() == "epoch 1"
    assert EVIL in page.locator("#readout .label").all_text_contents()
    page.locator("#smoothing").fill("0.5")
    for control in ("#log", "#linear", "#theme", "#theme"):
        page.locator(control).click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"

    box = page.locator(".u-over").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.2 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], middle, steps=4)
    page.mouse.up()
    assert page.locator("#reset").is_enabled()
    page.mouse.dblclick(box["x"] + 0.5 * box["width"], middle)
    assert page.locator("#reset").is_disabled()
    assert (seen.said, seen.asked) == ([], [])


@pytest.mark.parametrize(
    "histories",
    [
        {"loss": {4: 0.5}},
        {"loss": {0: math.nan}},
        {"zero": {0: 0.0, 1: 0.0}, "below": {0: -1.0}},
        {f"head_{index}.loss": {0: float(index), 9: 1.0} for index in range(40)},
    ],
    ids=["one point", "only nan", "nothing for a log scale", "many"],
)
def test_odd_histories_are_drawn_without_complaint(visit, histories) -> None:
    seen = visit(histories)
    assert len(seen.visible()) == len(histories)
    seen.page.locator("#log").click()
    assert (seen.said, seen.asked) == ([], [])
