"""The panels of the live page: content, layout and interaction."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from flodl import FlowBuilder
from flodl.monitor import Event, Journal, Monitor
from flodl.monitor.exports import save_html

CHART = "shownPage.panels.metrics.chart"


def archived(folder: Path, *events: Event, name: str = "run") -> str:
    """Write a finished run and return the address of its archive."""
    with Journal.open(folder / "run") as journal:
        journal.write(Event("run_start", {"name": name, "total_epochs": 3}, time_s=0.0))
        for event in events:
            journal.write(event)
        journal.write(Event("run_end", {"status": "finished", "duration_s": 9.0}, time_s=9.0))
    return save_html(folder / "run.html", [folder / "run"]).as_uri()


def epoch(number: int, **metrics: float) -> Event:
    data = {"epoch": number, "metrics": metrics, "duration_s": 1.0}
    return Event("epoch", data, time_s=float(number))


def columns(page: Any) -> list[list[str]]:
    """Return the visible panels of each column, from top to bottom."""
    script = (
        "() => [...document.querySelectorAll('.column')]"
        ".map((column) => [...column.children].filter(({ hidden }) => !hidden).map(({ id }) => id))"
    )
    return page.evaluate(script)


def test_non_finite_numbers_are_named_and_marked_live_and_in_archives(visit: Any, monitor: Monitor) -> None:
    monitor.log(0, {"loss": math.nan, "gain": math.inf, "low": -math.inf, "ok": 1.0})
    monitor.log_step(0, {"loss": 1.0})
    live = visit(monitor.url)
    monitor.log(1, {"loss": 2.0, "gain": math.nan, "low": 1.0, "ok": 1.0})
    monitor.log_step(1, {"loss": math.nan})
    live.wait_for_epochs(2)
    live.page.wait_for_function("() => shownPage.run.metrics.loss.y.length === 2")
    assert live.page.evaluate("shownPage.run.metrics.loss.y") == [1, "nan"]
    monitor.finish()
    for seen in (live, visit(monitor.save_html(monitor.run_dir / "run.html").as_uri())):
        cells = seen.page.locator("#epochs-table tbody td").all_text_contents()
        assert [cells[1:5], cells[7:11]] == [
            ["2.0000", "NaN", "1.0000", "1.0000"],
            ["NaN", "∞", "−∞", "1.0000"],
        ]
        assert "× marks 4 values" in (seen.page.locator("#metrics-note").text_content() or "")
        assert seen.messages == []


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_the_axes_are_shown_if_every_value_is_nan(visit: Any, tmp_path: Path, scale: str) -> None:
    seen = visit(archived(tmp_path, *(epoch(number, loss=math.nan) for number in range(3))))
    seen.page.locator(f"[data-scale={scale}]").click()
    plot = seen.page.locator("#metrics-chart .u-over").bounding_box()
    assert plot["x"] - seen.page.locator("#metrics-chart").bounding_box()["x"] >= 40
    assert seen.page.evaluate(f"{CHART}.plot.scales.y.min") is not None
    assert seen.messages == []


def test_after_loading_detail_the_readout_shows_the_visible_points(visit: Any, monitor: Monitor) -> None:
    for step in range(20_000):
        monitor.log_step(step, {"loss": float(step)})
    seen = visit(monitor.url)
    seen.drag(0.7, 0.8)
    seen.page.wait_for_function("() => shownPage.panels.metrics.detail !== null")
    heading = seen.page.locator("#metrics-chart .readout h3").text_content() or ""
    low, high = seen.x_range()
    assert low <= int(heading.removeprefix("step ")) <= high
    assert seen.page.locator("#column").text_content() == heading


def test_the_readout_shows_smoothed_and_measured_values(visit: Any, tmp_path: Path) -> None:
    seen = visit(archived(tmp_path, epoch(0, loss=4.0), epoch(1, loss=0.0123456)))
    seen.page.locator("#smoothing").fill("0.5")
    seen.page.locator("#metrics-chart").focus()
    seen.page.keyboard.press("End")
    assert seen.page.locator(".readout h3").first.text_content() == "epoch 2 · smoothed, measured"
    assert seen.page.locator(".readout .number").all_text_contents() == ["1.3416", "0.01235"]


def test_the_readout_stays_while_new_values_arrive(visit: Any, monitor: Monitor) -> None:
    for number in range(3):
        monitor.log(number, {"loss": float(number)})
    seen = visit(monitor.url)
    seen.page.locator("#metrics-chart").focus()
    seen.page.keyboard.press("Home")
    monitor.log(3, {"loss": 3.0})
    seen.wait_for_epochs(4)
    assert seen.page.locator("#column").text_content() == "epoch 1"
    assert seen.page.locator("#legend .number").text_content() == "0"


def test_the_keys_read_within_the_zoomed_range(visit: Any, tmp_path: Path) -> None:
    seen = visit(archived(tmp_path, *(epoch(number, loss=1.0) for number in range(20))))
    page, heading = seen.page, seen.page.locator("#metrics-chart .readout h3")
    page.locator("#metrics-chart").focus()
    page.keyboard.press("ArrowRight")
    assert heading.text_content() == "epoch 1"
    page.keyboard.press("+")
    low, high = seen.x_range()
    page.keyboard.press("ArrowRight")
    assert low <= int((heading.text_content() or "").removeprefix("epoch ")) <= high
    page.keyboard.press("End")
    assert heading.text_content() == f"epoch {math.floor(high)}"
    page.keyboard.press("Home")
    assert heading.text_content() == f"epoch {math.ceil(low)}"


def test_touch_reads_and_zooms(visit: Any, tmp_path: Path) -> None:
    address = archived(tmp_path, *(epoch(number, loss=1.0) for number in range(20)))
    seen = visit(address, viewport={"width": 390, "height": 844}, has_touch=True)
    box = seen.page.locator("#metrics-chart .u-over").bounding_box()
    session = seen.page.context.new_cdp_session(seen.page)

    def touch(kind: str, *shares: float) -> None:
        points = [{"x": box["x"] + share * box["width"], "y": box["y"] + 100} for share in shares]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", 0.4)
    touch("touchMove", 0.5)
    assert seen.page.locator("#metrics-chart .readout").is_visible()
    touch("touchEnd")
    touch("touchStart", 0.4, 0.6)
    touch("touchMove", 0.2, 0.8)
    touch("touchEnd")
    low, high = seen.x_range()
    assert (low, high) == pytest.approx((1 + 19 / 3, 1 + 38 / 3), abs=0.5)
    assert seen.page.locator("#reset").is_enabled()
    assert seen.messages == []


def test_an_axis_of_one_epoch_has_one_label(visit: Any, tmp_path: Path) -> None:
    seen = visit(archived(tmp_path, epoch(0, loss=1.0)))
    assert seen.page.evaluate("shownPage.panels.metrics.formatTicks([0, 0.5, 1, 1.5, 2])") == [
        "",
        "",
        "1",
        "",
        "",
    ]
    assert seen.page.evaluate(f"{CHART}.options.xAxis.label") == "epoch"


def test_a_finished_run_without_epochs_says_so(visit: Any, tmp_path: Path) -> None:
    seen = visit(archived(tmp_path))
    assert seen.page.locator("#metrics-chart .empty").text_content() == "No epoch was recorded"


def test_names_and_values_of_any_length_stay_readable(visit: Any, tmp_path: Path) -> None:
    long, deep = "x" * 200, "encoder." + "deep." * 20 + "loss"
    with Monitor(
        2,
        tmp_path / "run",
        name="n" * 300,
        console=False,
        resources=False,
        config={"a." * 60: "value " * 60},
    ) as monitor:
        monitor.log(0, {long: 1.0, deep: 2.0})
    address = monitor.save_html(tmp_path / "run.html").as_uri()
    for width in (1200, 390):
        page = visit(address, viewport={"width": width, "height": 844}).page
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("#config-table td").nth(1).bounding_box()["width"] > 90
        assert page.locator("#config-table td").nth(1).bounding_box()["height"] < 700
        for cell in page.locator("#epochs-table th").all():
            assert cell.bounding_box()["width"] < 240
        assert page.locator("#epochs-table th").nth(1).locator(".name").get_attribute("title") == long
        assert page.locator("h1").bounding_box()["height"] < 100


def test_visible_panels_fill_two_columns_or_one_on_a_phone(visit: Any, tmp_path: Path) -> None:
    address = archived(
        tmp_path,
        epoch(0, loss=1.0),
        Event("tier", {"tier": "eager", "reason": "it is small"}),
        Event("graph", {"label": "net", "parameters": {"total": 3, "trainable": 3}}),
    )
    assert columns(visit(address).page) == [["epochs", "tiers"], ["events", "graph"]]
    phone = visit(address, viewport={"width": 390, "height": 844}).page
    assert columns(phone) == [["epochs", "events", "tiers", "graph"], []]


def test_the_training_step_panel_repeats_nothing(visit: Any, tmp_path: Path) -> None:
    first = Event("tier", {"tier": "eager", "reason": "it is small", "step": 0})
    page = visit(archived(tmp_path / "one", first)).page
    assert page.locator("#tiers").get_by_text("it is small").count() == 1
    second = Event("tier", {"tier": "compiled", "reason": "it is faster", "step": 9, "gain": 1.5})
    page = visit(archived(tmp_path / "two", first, second)).page
    assert page.locator("#tiers tbody tr").count() == 2
    assert "1.50×" in (page.locator(".tier-now").text_content() or "")


def test_a_note_of_the_training_step_is_a_decision_but_not_its_tier(visit: Any, tmp_path: Path) -> None:
    tier = Event("tier", {"tier": "eager", "reason": "it is small", "step": 0})
    note = Event("note", {"message": "it counts as 6 samples", "about": "samples", "step": 0})
    old = Event("tier", {"tier": "eager", "what": "samples", "reason": "as an earlier version", "step": 0})
    page = visit(archived(tmp_path, tier, note, old)).page
    rows = [" ".join(one.split()) for one in page.locator("#tiers tbody tr").all_text_contents()]
    assert ["samples" in one for one in rows] == [False, True, True]
    assert "it is small" in (page.locator("#tiers .reason").text_content() or "")
    assert page.locator("#events-list").get_by_text("it counts as 6 samples").count() == 1
    assert "Notes 1" in (page.locator("#kinds").text_content() or "")


def test_the_focus_stays_on_a_rank_while_its_values_change(visit: Any, monitor: Monitor) -> None:
    for rank in range(3):
        monitor.emit(Event("run_start", {"name": "reader", "host": "node"}, rank=rank))
    seen = visit(monitor.url)
    button = seen.page.locator("#ranks-table button", has_text="rank 2")
    button.focus()
    monitor.emit(Event("metrics", {"step": 7, "metrics": {"loss": 5.0}}, rank=2))
    seen.page.locator("#ranks-table td", has_text="5.0000").wait_for()
    assert seen.page.evaluate("document.activeElement.dataset.rank") == "2"
    row = button.locator("xpath=ancestor::tr").locator("td").all_text_contents()
    assert row[:3] == ["rank 2", "—", "7"]


def test_of_many_devices_only_the_utilization_is_shown_first(visit: Any, tmp_path: Path) -> None:
    gpus = [
        {"device": at, "name": "card", "util_pct": 50.0, "vram_used_bytes": 1.0, "vram_total_bytes": 2.0}
        for at in range(8)
    ]
    reading = {"cpu_pct": 5.0, "ram_used_bytes": 1.0, "ram_total_bytes": 2.0, "gpus": gpus}
    page = visit(archived(tmp_path, *(Event("resources", reading, time_s=float(at)) for at in range(3)))).page
    shown = page.locator("#resources-legend .entry[aria-pressed=true] .label").all_text_contents()
    assert shown == ["CPU", *(f"GPU {at}" for at in range(8))]


def test_the_picture_can_be_opened_in_full_size(visit: Any, monitor: Monitor) -> None:
    monitor.watch(FlowBuilder(nn.Linear(4, 4)).label("net").build())
    for address in (monitor.url, monitor.save_html(monitor.run_dir / "run.html").as_uri()):
        seen = visit(address)
        with seen.page.expect_popup() as opened:
            seen.page.locator("#picture-link").click()
        opened.value.wait_for_load_state()
        assert opened.value.evaluate("document.documentElement.tagName") == "svg"
        opened.value.close()
        assert seen.messages == []


def test_events_are_sorted_by_time(visit: Any, tmp_path: Path) -> None:
    late, early = (
        Event("alert", {"message": "late"}, time_s=5.0),
        Event("save", {"path": "early"}, time_s=2.0),
    )
    page = visit(archived(tmp_path, late, early)).page
    assert page.locator("#events-list b").all_text_contents() == ["finished", "late", "early", "started"]


def test_the_classes_of_the_last_evaluation_are_tables_with_shades(visit: Any, tmp_path: Path) -> None:
    labels = ["cat", "<b>dog</b>"]
    tables = {
        "eval_f1": {"labels": labels, "values": [0.5, math.nan]},
        "eval_confusion": {"labels": labels, "values": [[3, 1], [0, 4]]},
    }
    event = epoch(0, loss=1.0)
    seen = visit(archived(tmp_path, Event("epoch", {**event.data, "tables": tables}, time_s=1.0)))
    cells = seen.page.locator("#classes-body td").all_text_contents()
    assert cells == ["cat", "0.5000", "<b>dog</b>", "NaN", "cat", "3", "1", "<b>dog</b>", "0", "4"]
    share = "(cell) => cell.style.getPropertyValue('--share')"
    matrix = seen.page.locator("#classes-body table.matrix td.shaded")
    assert [cell.evaluate(share) for cell in matrix.all()] == ["75%", "25%", "0%", "100%"]
    assert seen.messages == []
