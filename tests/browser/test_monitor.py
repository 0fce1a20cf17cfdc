"""The live page and its archive in a real browser: updates, reconnects, hostile text, mouse and keyboard."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from flodl import FlowBuilder
from flodl.monitor import Event, Journal, Monitor
from flodl.monitor.exports import save_html
from flodl.monitor.server import FollowedRuns, Server

EVIL = "<script>alert(1)</script>"


def train(monitor: Monitor, epochs: range) -> None:
    for epoch in epochs:
        for step in range(20):
            monitor.log_step(epoch * 20 + step, {"train.loss": 1.0 / (epoch * 20 + step + 1)}, epoch=epoch)
        monitor.log(epoch, {"train.loss": 1.0 / (epoch + 1), "val.loss": 2.0 / (epoch + 1)}, duration=1.0)


def test_updates_arrive_while_the_page_is_open(visit: Any, monitor: Monitor) -> None:
    seen = visit(monitor.url)
    assert seen.page.locator("#metrics-chart .empty").is_visible()
    train(monitor, range(3))
    seen.wait_for_epochs(3)
    assert seen.epochs() == ["3", "2", "1"]
    assert seen.page.locator("#stats dd").first.text_content() == "3 / 10"
    assert seen.visible() == ["loss", "loss"]
    monitor.progress(3, 10, 20)
    monitor.alert("the disk is nearly full")
    seen.page.wait_for_selector("#events-list :text('the disk is nearly full')")
    assert seen.page.locator("#stats").get_by_text("Remaining").is_visible()
    monitor.finish()
    seen.page.wait_for_selector("#dot[data-state=finished]")
    assert seen.messages == []


def test_a_late_page_shows_every_past_epoch_once_and_follows(visit: Any, monitor: Monitor) -> None:
    train(monitor, range(4))
    seen = visit(monitor.url)
    assert seen.epochs() == ["4", "3", "2", "1"]
    train(monitor, range(4, 6))
    seen.wait_for_epochs(6)
    assert seen.epochs() == ["6", "5", "4", "3", "2", "1"]
    steps = seen.page.evaluate("shownPage.run.metrics['train.loss'].x")
    assert steps == list(range(120))
    assert seen.messages == []


def test_a_lost_connection_is_restored_without_duplicates(visit: Any, monitor: Monitor) -> None:
    seen = visit(monitor.url)
    train(monitor, range(3))
    seen.wait_for_epochs(3)
    server = monitor._page._server
    for _ in range(2):
        for subscriber in list(server._subscribers._subscribers):
            server._call_soon(subscriber.writer.transport.abort)
        seen.page.wait_for_selector("#connection:not([hidden])")
        done = monitor.history[-1]["epoch"]
        train(monitor, range(done, done + 2))
        seen.wait_for_epochs(done + 2)
        seen.page.wait_for_selector("#connection", state="hidden")
    assert seen.epochs() == [str(epoch) for epoch in range(7, 0, -1)]
    assert seen.page.evaluate("shownPage.run.metrics['train.loss'].x") == list(range(140))
    ids = seen.page.evaluate("shownPage.run.events.map(({ id }) => id)")
    assert len(ids) == len(set(ids))


def test_a_page_that_fell_behind_reloads_the_state(visit: Any, monitor: Monitor) -> None:
    train(monitor, range(2))
    seen = visit(monitor.url)
    seen.page.wait_for_function("() => shownPage.follower.source?.readyState === EventSource.OPEN")
    seen.page.evaluate("shownPage.run.history.length = 0")
    server = monitor._page._server
    members = server._subscribers._subscribers
    server._call_soon(lambda: [setattr(subscriber, "is_skipped", True) for subscriber in members])
    train(monitor, range(2, 3))
    seen.wait_for_epochs(3)
    train(monitor, range(3, 4))
    seen.wait_for_epochs(4)


def test_a_page_opened_after_the_end_shows_the_run_as_finished(visit: Any, monitor: Monitor) -> None:
    train(monitor, range(2))
    monitor.finish()
    seen = visit(monitor.url)
    assert seen.page.locator("#dot").get_attribute("data-state") == "finished"
    assert seen.epochs() == ["2", "1"]
    assert not [url for url in seen.requests if "/events" in url]


def test_hostile_text_is_shown_as_text_everywhere(visit: Any, tmp_path: Path) -> None:
    config = {EVIL: EVIL, "__proto__": "x"}
    with Monitor(
        2,
        tmp_path / "run",
        name=EVIL,
        console=False,
        resources=False,
        step_rate=None,
        config=config,
        origins={EVIL: EVIL},
    ) as monitor:
        monitor.serve(port=0)
        seen = visit(monitor.url)
        monitor.log_step(0, {EVIL: 1.0, "__proto__": 1.0})
        monitor.log(0, {EVIL: 1.0, f"group.{EVIL}": 2.0, "__proto__": 1.0}, duration=1.0)
        monitor.alert(EVIL, path=EVIL)
        monitor.emit(Event("tier", {"tier": EVIL, "reason": EVIL}))
        monitor.emit(Event("save", {"path": EVIL, "reason": EVIL}))
        reading = {"cpu_pct": 1.0, "gpus": [{"name": EVIL, "util_pct": 3.0}]}
        monitor.emit(Event("resources", reading))
        seen.wait_for_epochs(1)
        seen.page.wait_for_selector("#tiers:not([hidden])")
        seen.page.wait_for_selector("#resources:not([hidden])")
        assert EVIL in seen.visible()
        assert seen.page.locator("h1").text_content() == EVIL
        assert EVIL in seen.page.locator("#epochs-table th").all_text_contents()
        assert EVIL in seen.page.locator("#config-table td").all_text_contents()
        assert EVIL in (seen.page.locator("#events-list").text_content() or "")
        seen.page.locator("#metrics-chart").focus()
        seen.page.keyboard.press("ArrowRight")
        assert EVIL in seen.page.locator("#metrics-chart .readout .label").all_text_contents()
        assert seen.page.locator("script").count() == seen.page.evaluate("document.scripts.length")
        assert not seen.page.evaluate("[...document.scripts].some((s) => s.textContent === 'alert(1)')")
        assert seen.messages == []
        archived = visit(save_html(tmp_path / "run.html", [monitor.run_dir]).as_uri())
        assert archived.page.locator("h1").text_content() == EVIL
        assert archived.messages == []
        monitor.close()


def test_zoom_pan_solo_scale_and_smoothing(visit: Any, monitor: Monitor) -> None:
    train(monitor, range(10))
    seen = visit(monitor.url)
    page = seen.page
    seen.drag(0.2, 0.6)
    zoomed = seen.x_range()
    assert 1 < zoomed[0] < zoomed[1] < 10
    assert page.locator("#reset").is_enabled()
    page.keyboard.down("Shift")
    seen.drag(0.6, 0.3)
    page.keyboard.up("Shift")
    panned = seen.x_range()
    assert panned[0] > zoomed[0]
    assert panned[1] - panned[0] == pytest.approx(zoomed[1] - zoomed[0])
    page.locator("#reset").click()
    assert seen.x_range() == [1, 10]
    page.locator("#metrics-chart").focus()
    page.keyboard.press("+")
    inner = seen.x_range()
    page.keyboard.press("Shift+ArrowRight")
    assert seen.x_range()[0] > inner[0]
    page.keyboard.press("Escape")
    assert seen.x_range() == [1, 10]
    page.keyboard.press("ArrowRight")
    assert page.locator("#metrics-chart .readout h3").text_content() == "epoch 1"

    entry = page.locator("#legend .entry")
    entry.nth(1).click()
    assert len(seen.visible()) == 1
    entry.nth(1).click()
    assert len(seen.visible()) == 2
    page.locator("#legend h3 button", has_text="val").click()
    assert len(seen.visible()) == 1
    page.locator("#show-all").click()
    assert len(seen.visible()) == 2
    page.locator("[data-scale=log]").click()
    assert page.evaluate("shownPage.panels.metrics.chart.log")
    page.locator("#smoothing").fill("0.5")
    assert page.locator("#smoothing-value").text_content() == "0.50"
    page.locator("[data-axis=step]").click()
    assert seen.x_range() == [0, 199]
    assert seen.messages == []


def test_a_zoomed_range_of_many_steps_is_shown_in_full_detail(visit: Any, monitor: Monitor) -> None:
    for step in range(20_000):
        monitor.log_step(step, {"loss": 5.0 if step == 7777 else 1.0})
    seen = visit(monitor.url)
    page = seen.page
    assert len(page.evaluate("shownPage.run.metrics.loss.x")) <= 2010
    assert 7777 in page.evaluate("shownPage.run.metrics.loss.x")
    seen.drag(0.35, 0.42)
    page.wait_for_function("() => shownPage.panels.metrics.detail !== null")
    steps = page.evaluate("shownPage.panels.metrics.detail.lines.loss.x")
    assert steps == list(range(steps[0], steps[-1] + 1))
    page.locator("#reset").click()
    page.wait_for_function("() => shownPage.panels.metrics.chart.plot.scales.x.max === 19999")
    assert page.evaluate("shownPage.panels.metrics.detail") is None
    assert seen.x_range() == [0, 19_999]
    assert seen.messages == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_archive_opens_from_disk_without_requests_in_light_and_dark(
    visit: Any, tmp_path: Path, theme: str
) -> None:
    model = FlowBuilder(nn.Linear(4, 8)).through(nn.GELU()).label("net").build()
    with Monitor(
        3, tmp_path / "run", console=False, resources=False, step_rate=None, config={"lr": 0.1}
    ) as monitor:
        monitor.watch(model)
        monitor.emit(Event("resources", {"cpu_pct": 40.0, "ram_used_bytes": 1e9, "ram_total_bytes": 4e9}))
        train(monitor, range(3))
    seen = visit(save_html(tmp_path / "run.html", [tmp_path / "run"]).as_uri(), color_scheme=theme)
    page = seen.page
    assert seen.epochs() == ["3", "2", "1"]
    page.wait_for_function("() => document.getElementById('picture').naturalWidth > 0")
    assert page.locator("#bars .track").count() == 2
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(244, 245, 247)", "dark": "rgb(14, 17, 22)"}[theme]
    page.locator("#theme").click()
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 17, 22)"
    assert [url for url in seen.requests if not url.startswith(("blob:", "data:"))] == []
    assert seen.messages == []


def test_several_runs_are_compared_on_one_page(visit: Any, tmp_path: Path) -> None:
    for name, rate in (("slow", 0.1), ("fast", 0.2)):
        with Monitor(
            3,
            tmp_path / name,
            name=name,
            console=False,
            resources=False,
            step_rate=None,
            config={"lr": rate, "seed": 0},
        ) as monitor:
            train(monitor, range(3))
    followed = FollowedRuns([tmp_path / "slow", tmp_path / "fast"])
    with Server(followed.runs, port=0) as server:
        seen = visit(server.url)
        page = seen.page
        assert page.locator("#runs-table tbody td:first-child").all_text_contents() == ["slow", "fast"]
        assert page.locator("#legend h3").all_text_contents() == ["train.loss", "val.loss"]
        assert seen.visible() == ["slow", "fast"]
        assert page.locator("#config-table tbody td").all_text_contents() == ["lr", "0.1", "0.2"]
        assert seen.messages == []


def test_the_end_of_another_process_is_detected(visit: Any, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        facts = {"name": "other", "total_epochs": 5, "pid": process.pid, "host": socket.gethostname()}
        # A run that is alive holds its journal.
        with Journal.open(tmp_path) as journal:
            journal.write(Event("run_start", facts))
            followed = FollowedRuns([tmp_path])
            with Server(followed.runs, last_id=followed.last_id, poll=followed.poll, port=0) as server:
                seen = visit(server.url)
                assert seen.page.locator("#dot").get_attribute("data-state") == "running"
                process.kill()
                process.wait()
                seen.page.wait_for_selector("#dot[data-state=lost]")
                assert "it was killed" in (seen.page.locator("#notice").text_content() or "")


def test_a_page_of_many_ranks_can_show_one_of_them(visit: Any, monitor: Monitor) -> None:
    for rank in range(4):
        facts = {"name": "reader", "total_epochs": 10, "host": f"node-{rank // 2}"}
        monitor.emit(Event("run_start", facts, rank=rank))
        for step in range(5):
            data = {"epoch": 0, "step": step, "metrics": {"loss": float(rank)}}
            monitor.emit(Event("metrics", data, rank=rank))
    seen = visit(monitor.url)
    page = seen.page
    assert page.locator("#ranks-table .host").all_text_contents() == ["node-0 · 2 ranks", "node-1 · 2 ranks"]
    assert page.locator("#ranks-aside").text_content() == "4 ranks on 2 hosts"
    page.locator("#ranks-table button", has_text="rank 3").click()
    page.wait_for_function("() => shownPage.run.rank === 3")
    assert page.evaluate("shownPage.run.metrics.loss.y") == [3, 3, 3, 3, 3]
    monitor.emit(Event("metrics", {"step": 5, "metrics": {"loss": 9.0}}, rank=3))
    page.wait_for_function("() => shownPage.run.metrics.loss.y.length === 6")
    assert seen.messages == []


def test_a_phone_needs_no_horizontal_scrolling(visit: Any, monitor: Monitor) -> None:
    train(monitor, range(3))
    monitor.alert("a long word " + "x" * 200)
    seen = visit(monitor.url, viewport={"width": 360, "height": 740})
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 360
    assert seen.messages == []


def test_every_control_can_be_reached_with_the_keyboard(visit: Any, monitor: Monitor) -> None:
    train(monitor, range(2))
    seen = visit(monitor.url)
    reached = set()
    for _ in range(40):
        seen.page.keyboard.press("Tab")
        name = seen.page.evaluate(
            "(({ id, dataset, className }) => id || dataset.axis || className)(document.activeElement)"
        )
        reached.add(name)
    assert {"theme", "epoch", "step", "smoothing", "metrics-chart", "entry"} <= reached


def test_a_page_with_a_token_follows_the_run(visit: Any, tmp_path: Path) -> None:
    with Monitor(3, tmp_path / "run", console=False, resources=False, step_rate=None) as monitor:
        address = monitor.serve(port=0, token="secret")
        seen = visit(address)
        assert "secret" not in seen.page.url
        train(monitor, range(2))
        seen.wait_for_epochs(2)
        monitor.close()


def test_many_open_pages_all_follow_the_run(browser: Any, visit: Any, monitor: Monitor) -> None:
    context = browser.new_context()
    pages = [visit(monitor.url, context=context) for _ in range(9)]
    train(monitor, range(3))
    for seen in pages:
        seen.wait_for_epochs(3)
    monitor.alert("to all")
    monitor.finish()
    for seen in pages:
        seen.page.wait_for_selector("#dot[data-state=finished]")
        assert seen.epochs() == ["3", "2", "1"]
        assert seen.page.evaluate("shownPage.run.metrics['train.loss'].x") == list(range(60))
    assert len(monitor._page._server._subscribers) <= 4
    context.close()


def test_a_deleted_journal_is_reported_and_the_page_continues(visit: Any, monitor: Monitor) -> None:
    train(monitor, range(1))
    seen = visit(monitor.url)
    shutil.rmtree(monitor.run_dir)
    train(monitor, range(1, 3))
    seen.wait_for_epochs(3)
    seen.page.wait_for_selector("#events-list :text('was deleted')")
    monitor.finish()
    seen.page.wait_for_selector("#dot[data-state=finished]")
    late = visit(monitor.url)
    assert late.epochs() == ["3", "2", "1"]
    assert seen.messages == []
    shutil.rmtree(monitor._journal.reader().path.parent)


def test_alerts_show_their_level_as_text_and_color(visit: Any, monitor: Monitor) -> None:
    for level in ("info", "warning", "error"):
        monitor.alert(f"this is {level}", level=level)
    page = visit(monitor.url).page
    labels = page.locator("#events-list .level")
    assert labels.all_text_contents() == ["error", "warning", "info"]
    assert len({labels.nth(at).evaluate("label => getComputedStyle(label).color") for at in range(3)}) == 3


def test_a_run_of_several_days_has_dates(visit: Any, tmp_path: Path) -> None:
    day = 86_400.0
    with Journal.open(tmp_path / "run") as journal:
        journal.write(Event("run_start", {"name": "long"}, time_s=1.7e9))
        for at in range(60):
            reading = {"cpu_pct": 50.0 + at % 7}
            journal.write(Event("resources", reading, time_s=1.7e9 + at * day / 20))
        journal.write(Event("alert", {"message": "hot"}, time_s=1.7e9 + day))
        journal.write(Event("run_end", {"status": "finished"}, time_s=1.7e9 + 3 * day))
    seen = visit(
        save_html(tmp_path / "run.html", [tmp_path / "run"]).as_uri(), timezone_id="UTC", locale="en-GB"
    )
    times = seen.page.locator("#events-list time").all_text_contents()
    assert times == ["17 Nov 22:13:20", "15 Nov 22:13:20", "14 Nov 22:13:20"]
    assert seen.page.locator("#lane text").last.text_content() == "17 Nov 22:13:20"
    ticks = seen.page.evaluate(
        "(() => { const { resources } = shownPage.panels; const { min, max } = resources.chart.plot.scales.x;"
        " return resources.formatTicks([min, min + 43200, min + 86400]); })()"
    )
    assert ticks == ["14 Nov 22:13", "15 Nov 10:13", "15 Nov 22:13"]


def test_of_many_metrics_only_the_important_ones_are_shown_first(visit: Any, tmp_path: Path) -> None:
    with Monitor(2, tmp_path / "run", console=False, resources=False) as monitor:
        norms = {f"layer{at}.norm": float(at) for at in range(100)}
        for epoch in range(2):
            monitor.log(epoch, {"loss": 0.5, "val.accuracy": 0.5, **norms}, duration=1.0)
    seen = visit(monitor.save_html(tmp_path / "run.html").as_uri())
    assert seen.visible() == ["loss", "val"]
    names = seen.page.locator("#legend .group", has_text="norm").first.locator(".label").all_text_contents()
    assert names == [f"layer{at}" for at in range(100)]
    assert "2 of 102 lines shown" in (seen.page.locator("#metrics-note").text_content() or "")
    seen.page.locator("#show-all").click()
    assert len(seen.visible()) == 102


def test_a_comparison_starts_with_a_metric_of_all_runs_and_shows_its_name(visit: Any, tmp_path: Path) -> None:
    for name, own in (("one", "a.loss"), ("two", "b.loss")):
        with Monitor(2, tmp_path / name, name=name, console=False, resources=False) as monitor:
            for epoch in range(2):
                monitor.log(epoch, {own: 1.0, f"val.{own}": 0.5, "z.loss": 0.5}, duration=1.0)
    page = visit(save_html(tmp_path / "both.html", [tmp_path / "one", tmp_path / "two"]).as_uri())
    assert page.visible() == ["one", "two"]
    assert page.page.locator("#shown-name").text_content() == "z.loss"


def test_a_log_scale_leaves_a_gap_for_values_that_are_not_positive(visit: Any, tmp_path: Path) -> None:
    with Monitor(9, tmp_path / "run", console=False, resources=False) as monitor:
        for epoch in range(9):
            monitor.log(epoch, {"loss": -1.0 if 3 <= epoch <= 5 else 1.0 + epoch}, duration=1.0)
    page = visit(monitor.save_html(tmp_path / "run.html").as_uri()).page
    page.locator("[data-scale=log]").click()
    chart = "shownPage.panels.metrics.chart"
    assert page.evaluate(f"{chart}.columns[1]") == [1, 2, 3, None, None, None, 7, 8, 9]
    assert page.evaluate(f"{chart}.plot.series[1].spanGaps") is False


def test_the_elapsed_time_does_not_depend_on_the_wall_clock(visit: Any, tmp_path: Path) -> None:
    with Journal.open(tmp_path / "run") as journal:
        journal.write(Event("run_start", {"name": "jump"}, time_s=0.0))
        journal.write(Event("run_end", {"status": "finished", "duration_s": 7.5}, time_s=2.6e6))
    page = visit(save_html(tmp_path / "run.html", [tmp_path / "run"]).as_uri()).page
    assert page.locator("#stats div", has_text="Elapsed").locator("dd").text_content() == "7s"
