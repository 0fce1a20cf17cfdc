"""The chart of metrics: an axis for each magnitude, every metric over steps, and colors of the theme."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from flodl import FlowBuilder
from flodl.monitor import Monitor

CHART = "shownPage.panels.metrics.chart"


def record(folder: Path, **scales: float) -> str:
    """Record two epochs of ten steps with one metric of each size, and return the address of the archive."""
    with Monitor(2, folder / "run", console=False, resources=False, step_rate=None) as monitor:
        for step in range(20):
            values = {name: scale * (1 - step / 40) for name, scale in scales.items()}
            monitor.log_step(step, values, epoch=step // 10)
            if step % 10 == 9:
                monitor.log(step // 10, {"val.loss": 0.5, "val.accuracy": 0.9}, duration=1.0)
    return monitor.save_html(folder / "run.html").as_uri()


def axes(page: Any) -> list[list[str]]:
    return page.evaluate(f"{CHART}.axes")


def over_steps(visit: Any, address: str, **options: Any) -> Any:
    seen = visit(address, **options)
    seen.page.locator("[data-axis=step]").click()
    return seen


def test_metrics_of_different_magnitude_have_separate_axes(visit: Any, tmp_path: Path) -> None:
    seen = over_steps(visit, record(tmp_path, loss=1.0, tokens_per_s=50_000.0, lr=1e-4))
    together = ["loss", "val.loss", "val.accuracy"]
    assert axes(seen.page) == [together, ["tokens_per_s"], ["lr"]]
    tops = seen.page.evaluate(f"['y', 'y2', 'y3'].map((name) => {CHART}.plot.scales[name].max)")
    assert tops[1] > 40_000
    assert tops[2] < 2e-4
    labels = seen.page.evaluate(f"{CHART}.plot.axes.slice(1).map(({{ label }}) => label)")
    assert labels == ["loss and 2 more", "tokens_per_s", "lr"]
    assert seen.messages == []


def test_hiding_a_metric_removes_its_axis(visit: Any, tmp_path: Path) -> None:
    seen = over_steps(visit, record(tmp_path, loss=1.0, tokens_per_s=50_000.0))
    page = seen.page
    assert len(axes(page)) == 2
    page.locator("#legend .entry", has_text="tokens_per_s").click(modifiers=["Shift"])
    assert len(axes(page)) == 1
    assert page.evaluate(f"{CHART}.plot.axes.length") == 2
    page.locator("#show-all").click()
    assert len(axes(page)) == 2
    assert seen.messages == []


def test_a_phone_has_two_axes_at_most(visit: Any, tmp_path: Path) -> None:
    address = record(tmp_path, loss=1.0, tokens_per_s=50_000.0, lr=1e-4)
    seen = over_steps(visit, address, viewport={"width": 390, "height": 844})
    assert len(axes(seen.page)) == 2
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_readout_is_next_to_the_line_on_its_own_axis(visit: Any, tmp_path: Path) -> None:
    page = over_steps(visit, record(tmp_path, loss=1.0, tokens_per_s=50_000.0)).page
    box = page.locator("#metrics-chart .u-over").bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 20)
    text = page.locator("#metrics-chart .readout").inner_text()
    assert "50000" in text.replace(",", "")
    assert "loss" in text


def test_the_steps_show_every_metric_also_those_of_epochs(visit: Any, tmp_path: Path) -> None:
    page = over_steps(visit, record(tmp_path, loss=1.0)).page
    lines = page.evaluate(
        "Object.fromEntries(shownPage.panels.metrics.lines.map(({ name, x }) => [name, x]))"
    )
    assert lines["loss"] == list(range(20))
    assert lines["val.loss"] == lines["val.accuracy"] == [9, 19]


def test_smoothing_over_steps_hardly_changes_metrics_of_epochs(visit: Any, tmp_path: Path) -> None:
    with Monitor(4, tmp_path / "run", console=False, resources=False, step_rate=None) as monitor:
        for step in range(400):
            monitor.log_step(step, {"loss": 1.0}, epoch=step // 100)
            if step % 100 == 99:
                monitor.log(step // 100, {"val.loss": float(4 - step // 100)}, duration=1.0)
    page = over_steps(visit, monitor.save_html(tmp_path / "run.html").as_uri()).page
    page.locator("#smoothing").fill("0.9")
    smooth = page.evaluate(f"{CHART}.smooth[1].filter((value) => value !== null && value !== undefined)")
    assert smooth == pytest.approx([4.0, 3.0, 2.0, 1.0], abs=0.01)


def test_the_steps_of_a_live_run_show_new_epochs(visit: Any, monitor: Monitor) -> None:
    monitor.log_step(0, {"loss": 1.0}, epoch=0)
    seen = visit(monitor.url)
    for epoch in range(3):
        monitor.log_step(5 * epoch + 5, {"loss": 0.5}, epoch=epoch)
        monitor.log(epoch, {"val.loss": 1.0}, duration=1.0)
    seen.wait_for_epochs(3)
    seen.page.locator("[data-axis=step]").click()
    lines = "Object.fromEntries(shownPage.panels.metrics.lines.map(({ name, x }) => [name, x]))"
    assert seen.page.evaluate(lines)["val.loss"] == [5, 10, 15]
    assert seen.messages == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_picture_of_the_model_has_the_background_of_its_panel(
    visit: Any, tmp_path: Path, theme: str
) -> None:
    with Monitor(1, tmp_path / "run", console=False, resources=False) as monitor:
        monitor.watch(FlowBuilder(nn.Linear(4, 4)).through(nn.ReLU()).build())
        monitor.log(0, {"loss": 1.0}, duration=1.0)
    # The button chooses the theme, against that of the system.
    other = "light" if theme == "dark" else "dark"
    page = visit(monitor.save_html(tmp_path / "run.html").as_uri(), color_scheme=other).page
    for _ in range(3):
        if page.evaluate("document.documentElement.dataset.theme") != theme:
            page.locator("#theme").click()
    page.wait_for_function("() => byId('picture').complete && byId('picture').naturalWidth > 0")
    page.locator("#picture").scroll_into_view_if_needed()
    box, panel = (page.locator(name).bounding_box() for name in ("#picture", "#graph"))
    middle = box["y"] + box["height"] / 2

    def pixels(left: float) -> bytes:
        return page.screenshot(clip={"x": round(left), "y": round(middle), "width": 4, "height": 4})

    ground = pixels(panel["x"] + 6)
    assert pixels(box["x"] + 6) == ground
    assert pixels(box["x"] + box["width"] / 2) != ground
