"""A real browser for the tests of a file; without one they are skipped, with the command that installs it.

Timeouts are long because the machine may be busy; they only end tests that would never finish.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flodl.monitor import Monitor

TIMEOUT_MS = 60_000
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("needs a browser: apt-get install --no-install-recommends chromium fonts-dejavu-core")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


class Visit:
    """One page, with its console output and its requests."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.messages: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        page.on("dialog", lambda dialog: (self.messages.append("dialog"), dialog.dismiss()))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        self.requests = [url for url in self.requests if url != address]

    def epochs(self) -> list[str]:
        """Return the epochs in the table, newest first."""
        return self.page.locator("#epochs-table tbody tr td:first-child").all_text_contents()

    def wait_for_epochs(self, count: int) -> None:
        self.page.wait_for_function(
            "count => document.querySelectorAll('#epochs-table tbody tr').length === count", arg=count
        )

    def visible(self) -> list[str]:
        return self.page.locator("#legend .entry[aria-pressed=true] .label").all_text_contents()

    def x_range(self) -> list[float]:
        """Return the visible range of the metrics axis."""
        return self.page.evaluate(
            "() => { const { min, max } = shownPage.panels.metrics.chart.plot.scales.x; return [min, max]; }"
        )

    def drag(self, start: float, end: float) -> None:
        box = self.page.locator("#metrics-chart .u-over").bounding_box()
        height = box["y"] + box["height"] / 2
        self.page.mouse.move(box["x"] + start * box["width"], height)
        self.page.mouse.down()
        self.page.mouse.move(box["x"] + end * box["width"], height, steps=5)
        self.page.mouse.up()


@pytest.fixture
def visit(browser: Any) -> Iterator[Any]:
    """Open the page of a run; options are those of Playwright's `new_page`."""
    pages = []

    def open_page(address: str, *, context: Any = None, **options: Any) -> Visit:
        options = {"viewport": {"width": 1200, "height": 900}, **options}
        page = browser.new_page(**options) if context is None else context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        pages.append(page)
        return Visit(page, address)

    yield open_page
    for page in pages:
        page.close()


@pytest.fixture
def monitor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Monitor]:
    """Yield a run with a live page, which stays open after the end of the run."""
    monkeypatch.setattr("flodl.monitor.live_page._LINGER_S", 600.0)
    created = Monitor(
        10, tmp_path / "run", name="reader", config={}, console=False, resources=False, step_rate=None
    )
    created.serve(port=0)
    yield created
    created.close()
