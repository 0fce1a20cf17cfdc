"""The live page over time: a new run on the same port, silence, reloads, and smoothing under zoom."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from flodl.monitor import Event, Monitor
from flodl.monitor.exports import save_html
from flodl.monitor.server import FollowedRuns, Server

CHART = "shownPage.panels.metrics.chart"
# The smoothed value at a step, as drawn.
SMOOTHED_AT = f"step => {CHART}.smooth[0][{CHART}.columns[0].indexOf(step)]"


def run_at(folder: Path, port: int, *, epochs: int) -> Monitor:
    created = Monitor(50, folder, name=folder.name, console=False, resources=False, step_rate=None)
    created.serve(port=port)
    for epoch in range(epochs):
        created.log(epoch, {f"{folder.name}.loss": 1.0}, duration=1.0)
    return created


@pytest.mark.parametrize("later", [1, 9])
def test_a_page_shows_only_the_new_run_after_it_took_over_the_port(
    visit: Any, tmp_path: Path, later: int
) -> None:
    first = run_at(tmp_path / "rc1", 0, epochs=3)
    port = urlsplit(first.url).port
    seen = visit(first.url)
    seen.wait_for_epochs(3)
    first._page._server.close()  # like a kill: the page receives no end event
    second = run_at(tmp_path / "rc2", port, epochs=later)
    try:
        assert urlsplit(second.url).port == port
        seen.page.wait_for_function("() => document.getElementById('name').textContent === 'rc2'")
        seen.wait_for_epochs(later)
        assert "rc2" in seen.page.title()
        assert seen.page.locator("#epochs-table th").all_text_contents() == ["Epoch", "rc2.loss", "Time"]
        second.log(later, {"rc2.loss": 0.5}, duration=1.0)
        seen.wait_for_epochs(later + 1)
    finally:
        second.close()
        first.close()


def test_a_repeated_epoch_replaces_all_epochs_after_it(visit: Any, monitor: Monitor) -> None:
    for epoch in range(4):
        monitor.log(epoch, {"loss": 1.0}, duration=1.0)
    seen = visit(monitor.url)
    seen.wait_for_epochs(4)
    monitor.log(1, {"loss": 0.5}, duration=1.0)
    seen.wait_for_epochs(2)
    assert seen.epochs() == ["2", "1"]
    assert [record["epoch"] for record in monitor.history] == [1, 2]


def test_an_unusual_silence_is_shown_until_the_next_event(visit: Any, monitor: Monitor) -> None:
    now_s = time.time()
    for second in range(10):
        monitor.emit(Event("resources", {"cpu_pct": 1.0}, time_s=now_s - 10 + second))
    page = visit(monitor.url).page
    page.evaluate("shownPage.run.last_message_ms = performance.now() - 8000")
    is_silent = "() => document.getElementById('subtitle').textContent.includes('no events for')"
    page.wait_for_function(is_silent)
    assert page.locator("#subtitle").text_content().startswith("running · no events for ")
    assert page.locator("#dot.quiet[data-state=running]").count() == 1
    monitor.alert("awake")
    page.wait_for_function(f"() => !({is_silent})()")
    page.wait_for_selector("#dot:not(.quiet)")


def test_a_run_with_rare_events_is_not_silent(visit: Any, monitor: Monitor) -> None:
    for epoch in range(3):
        monitor.emit(Event("epoch", {"epoch": epoch, "metrics": {}}, time_s=60.0 * epoch))
    page = visit(monitor.url).page
    pauses = page.evaluate("shownPage.run.pauses")
    assert 60 in pauses
    silences = page.evaluate(
        "() => [[60, 60], 200, [60, 60], 400].reduce((found, given, at, all) => {"
        " if (at % 2) { shownPage.run.pauses = all[at - 1];"
        " shownPage.run.last_message_ms = performance.now() - given * 1000;"
        " found.push(shownPage.run.silence() === null); } return found; }, [])"
    )
    assert silences == [True, False]


def test_the_view_is_restored_after_a_reload(visit: Any, monitor: Monitor) -> None:
    for epoch in range(3):
        monitor.log_step(epoch, {"a": 1.0, "b": 2.0}, epoch=epoch)
        monitor.log(epoch, {"a": 1.0, "b": 2.0}, duration=1.0)
    archive = monitor.save_html(monitor.run_dir / "run.html").as_uri()
    for address in (monitor.url, archive):
        seen = visit(address)
        page = seen.page
        page.locator("[data-axis=step]").click()
        page.locator("[data-scale=log]").click()
        page.locator("#smoothing").fill("0.5")
        page.locator("#legend .entry", has_text="b").click()
        page.reload()
        page.wait_for_selector("html[data-ready]")
        assert seen.visible() == ["b"]
        pressed = page.locator("[data-axis][aria-pressed=true], [data-scale][aria-pressed=true]")
        assert pressed.all_text_contents() == ["Steps", "Log"]
        assert page.locator("#smoothing").input_value() == "0.5"
        assert page.locator("#smoothing-value").text_content() == "0.50"
        assert page.evaluate(f"[{CHART}.log, {CHART}.smoothing]") == [True, 0.5]
        assert seen.messages == []


def test_the_page_works_without_storage(browser: Any, monitor: Monitor) -> None:
    monitor.log(0, {"loss": 1.0}, duration=1.0)
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.add_init_script(
        "for (const name of ['sessionStorage', 'localStorage']) Object.defineProperty(window, name,"
        " { get() { throw new DOMException('blocked', 'SecurityError'); } });"
    )
    page.goto(monitor.url)
    page.wait_for_selector("html[data-ready]")
    page.locator("[data-scale=log]").click()
    assert page.evaluate(f"{CHART}.log")
    page.close()
    assert errors == []


def test_zooming_does_not_change_a_smoothed_line(visit: Any, monitor: Monitor) -> None:
    for step in range(20_000):
        monitor.log_step(step, {"loss": 1.0 + step / 20_000 + (step * 7919 % 101) / 100})
    seen = visit(monitor.url)
    page = seen.page
    page.locator("#smoothing").fill("0.9")
    whole = dict(zip(page.evaluate(f"{CHART}.columns[0]"), page.evaluate(f"{CHART}.smooth[0]")))
    seen.drag(0.40, 0.45)
    page.wait_for_function("() => shownPage.panels.metrics.detail !== null")
    steps = page.evaluate("shownPage.panels.metrics.detail.lines.loss.x")
    assert len(steps) > len([step for step in whole if steps[0] <= step <= steps[-1]])
    shared = [step for step in steps if step in whole]
    assert len(shared) > 20
    for step in (shared[0], shared[len(shared) // 2], shared[-1]):
        assert page.evaluate(SMOOTHED_AT, step) == pytest.approx(whole[step])
    drawn = page.evaluate(f"{CHART}.smooth[0]")
    assert sum(drawn) / len(drawn) == pytest.approx(1.5 + steps[len(steps) // 2] / 20_000, abs=0.1)


def test_smoothing_depends_on_distance_instead_of_the_number_of_points(visit: Any, tmp_path: Path) -> None:
    with Monitor(2, tmp_path / "run", console=False, resources=False) as monitor:
        monitor.log(0, {"loss": 1.0}, duration=1.0)
    page = visit(save_html(tmp_path / "run.html", [tmp_path / "run"]).as_uri()).page
    dense, sparse = page.evaluate(
        "() => { const places = (gap) => Array.from({ length: 12000 / gap + 1 }, (_, at) => at * gap);"
        " const line = (gap) => { const x = places(gap);"
        " return smoothByDistance(x, x.map((place) => Math.sin(place / 900)), 0.95)[9000 / gap]; };"
        " return [line(1), line(6)]; }"
    )
    assert dense == pytest.approx(sparse, abs=0.01)


def test_runs_with_the_same_name_are_distinguished(visit: Any, tmp_path: Path) -> None:
    folders = [tmp_path / group / "s0" for group in ("gA", "gB")]
    for folder in folders:
        with Monitor(2, folder, console=False, resources=False) as monitor:
            monitor.log(0, {"loss": 1.0}, duration=1.0)
    cell = "#runs-table tbody td:first-child"
    with Server(FollowedRuns(folders).runs, port=0) as server:
        seen = visit(server.url)
        assert seen.page.locator(cell).all_text_contents() == ["gA/s0", "gB/s0"]
        assert seen.page.locator("#legend .label").all_text_contents() == ["gA/s0", "gB/s0"]
        assert seen.page.title() == "gA/s0 · gB/s0"
    page = visit(save_html(tmp_path / "both.html", folders).as_uri()).page
    assert len(set(page.locator(cell).all_text_contents())) == 2


def test_a_phone_shows_losses_first_and_hints_at_more(visit: Any, tmp_path: Path) -> None:
    plain = {f"plain{at}": 1.0 for at in range(8)}
    layers = {f"block{at}.norm": 1.0 for at in range(12)}
    with Monitor(2, tmp_path / "run", console=False, resources=False) as monitor:
        for epoch in range(2):
            monitor.log(epoch, {**plain, **layers, "train.loss": 1.0, "eval.loss": 1.0}, duration=1.0)
    address = save_html(tmp_path / "run.html", [tmp_path / "run"]).as_uri()
    page = visit(address, viewport={"width": 390, "height": 844}).page
    names = page.locator("#legend .entry").evaluate_all("entries => entries.map(({ title }) => title)")
    assert sorted(names[:2]) == ["eval.loss", "train.loss"]
    box = page.locator("#legend").bounding_box()
    ends = [entry.bounding_box() for entry in page.locator("#legend .entry").all()]
    assert sum(entry["y"] + entry["height"] <= box["y"] + box["height"] for entry in ends) >= 10
    assert "gradient" in page.locator("#legend").evaluate("list => getComputedStyle(list).backgroundImage")
