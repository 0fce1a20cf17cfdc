"""The ranks of a run on the live page and in archives: the report, the table, the timeline and the speed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from flodl.monitor import Event, Journal, Monitor
from flodl.monitor.exports import save_html

CHART = "shownPage.panels.rankWork.chart"
RANGE = f"() => {{ const {{ min, max }} = {CHART}.plot.scales.x; return [min, max]; }}"


def update(number: int, start_s: float, *, num_ranks: int = 3, **changes: Any) -> dict[str, Any]:
    """One second of training: rank 0 waits for a quarter of it, the others compute. Changes are of rank 1."""
    begin_s, done = start_s + number, number + 1
    rows = [
        {
            "rank": rank,
            "device": f"cuda:{rank}",
            "host": "node",
            "state": "running",
            "batches": 4 + rank,
            "updates": 4 * done,
            "samples": 100 * done,
            "num_bytes": 1024 * done,
            "train_s": (0.75 if rank == 0 else 1.0) * done,
            "wait_s": (0.25 if rank == 0 else 0.0) * done,
            "reduce_s": 0.0,
            "pause_s": 0.0,
            "since_s": begin_s + 1.0,
            "seen_s": begin_s + 1.0,
            "joined_s": start_s,
            "ended_s": 0.0,
            "speed": 100.0 * (rank + 1),
            "lost": "",
        }
        for rank in range(num_ranks)
    ]
    rows[1] |= changes
    slices = {str(rank): [[begin_s, begin_s + 1.0, 1.0, 0.0, 0.0]] for rank in range(1, num_ranks)}
    slices["0"] = [
        [begin_s, begin_s + 0.75, 0.75, 0.0, 0.0],
        [begin_s + 0.75, begin_s + 1.0, 0.0, 0.0, 0.25],
    ]
    coverage = {"num_samples": 1000, "epochs": 0, "partial": 300 * done, "missing": 0, "repeated": 0}
    totals = {"syncs": done, "samples": 300 * done, "num_bytes": 0, "divergence": 0.25, "coverage": coverage}
    return {
        "start_s": start_s,
        "time_s": begin_s + 1.0,
        "number": number,
        "policy": "cadence",
        "totals": totals,
        "ranks": rows,
        "slices": slices,
        "pace": {str(rank): [[begin_s, 4 + rank]] for rank in range(num_ranks)},
        "syncs": [[begin_s + 1.0, 1]],
    }


def archived(folder: Path, *updates: dict[str, Any]) -> str:
    with Journal.open(folder / "run") as journal:
        journal.write(Event("run_start", {"name": "run", "total_epochs": 3}, time_s=100.0))
        for data in updates:
            journal.write(Event("ranks", data, time_s=data["time_s"]))
        journal.write(Event("run_end", {"status": "finished", "duration_s": 9.0}, time_s=200.0))
    return save_html(folder / "run.html", [folder / "run"]).as_uri()


def cells(page: Any, rank: int) -> list[str]:
    return page.locator("#rank-table tbody tr").nth(rank).locator("td").all_text_contents()


def test_a_run_on_one_device_shows_nothing_of_ranks(visit: Any, tmp_path: Path) -> None:
    seen = visit(archived(tmp_path))
    assert seen.page.locator("#rank-work").is_hidden()
    assert seen.messages == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_the_report_the_table_and_the_charts_are_shown(
    visit: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    address = archived(tmp_path, *(update(number, 100.0) for number in range(8)))
    seen = visit(address, viewport={"width": width, "height": 844}, color_scheme=scheme)
    page = seen.page
    facts = page.locator("#rank-facts dd").all_text_contents()
    assert facts == ["8", "8.3%", "8.3%", "0.0%", "24 KB", "0.2500", "2400 of 1000 samples of an epoch"]
    assert cells(page, 0)[:4] == ["rank 0", "cuda:0", "ended", "4"]
    assert cells(page, 0)[6:11] == ["33.3%", "133/s", "75.0%", "0.0%", "25.0%"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#speed-legend .entry").count() == 3
    assert seen.messages == []
    colors = page.evaluate(
        f"""() => {{
          const {{ ctx, bbox }} = {CHART}.plot;
          const at = (time, lane) => [...ctx.getImageData({CHART}.plot.valToPos(time, "x", true),
            bbox.top + (lane * bbox.height) / 3 + 16 * devicePixelRatio, 1, 1).data].join();
          return [at(0.4, 0), at(0.9, 0), at(0.4, 1), at(0.9, 1)];
        }}"""
    )
    computing, waiting, other, still = colors
    assert computing == other == still != waiting


def test_a_live_page_follows_the_ranks(visit: Any, monitor: Monitor) -> None:
    start_s = time.time() - 10.0
    seen = visit(monitor.url)
    assert seen.page.locator("#rank-work").is_hidden()
    monitor.emit(Event("ranks", update(0, start_s)))
    seen.page.locator("#rank-work").wait_for()
    assert cells(seen.page, 1)[2] == "running"
    lost = {"state": "lost", "lost": "its process ended", "ended_s": start_s + 2.0}
    monitor.emit(Event("ranks", update(1, start_s, **lost)))
    seen.page.get_by_text("lost: its process ended").wait_for()
    assert "1 lost" in (seen.page.locator("#rank-work-aside").text_content() or "")
    assert seen.page.evaluate("shownPage.run.rank_work.slices['0'].length") == 4
    # What ranks do since the last event is part of the timeline.
    assert seen.page.evaluate(f"{CHART}.columns[0].at(-1)") > 9.0
    assert seen.page.evaluate(f"{CHART}.lanes[1].slices.at(-1)[1]") == pytest.approx(2.0)
    later = visit(monitor.url)
    assert later.page.evaluate("shownPage.run.rank_work.slices['0'].length") == 4
    assert seen.messages == later.messages == []


def test_a_new_start_replaces_the_ranks_of_the_one_before(visit: Any, monitor: Monitor) -> None:
    for number in range(3):
        monitor.emit(Event("ranks", update(number, 100.0)))
    seen = visit(monitor.url)
    monitor.emit(Event("ranks", update(0, 500.0, num_ranks=2)))
    seen.page.wait_for_function("() => document.querySelectorAll('#rank-table tbody tr').length === 2")
    assert seen.page.evaluate("shownPage.run.rank_work.slices['0'].length") == 2


def test_the_timeline_zooms_and_reads_by_mouse_and_keys(visit: Any, tmp_path: Path) -> None:
    lost = {"state": "lost", "lost": "gone", "ended_s": 104.0}
    seen = visit(archived(tmp_path, *(update(number, 100.0, **lost) for number in range(8))))
    page = seen.page
    page.locator("#lanes-chart").scroll_into_view_if_needed()
    box = page.locator("#lanes-chart .u-over").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.25 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], middle, steps=5)
    page.mouse.up()
    assert page.evaluate(RANGE) == pytest.approx([2.0, 4.0], abs=0.1)
    page.mouse.move(box["x"] + 0.4 * box["width"], middle)
    assert page.locator("#lanes-chart .reading .number").all_text_contents() == [
        "waiting · 4 batches",
        "computing · 5 batches",
        "computing · 6 batches",
    ]
    page.locator("#lanes-chart").focus()
    page.keyboard.press("Shift+ArrowRight")
    assert page.evaluate(RANGE)[0] > 2.2
    page.locator("#lanes-reset").click()
    assert page.evaluate(RANGE) == pytest.approx([0.0, 8.0], abs=0.01)
    assert page.locator("#lanes-reset").is_disabled()
    assert seen.messages == []


def test_the_page_stays_within_its_memory(visit: Any, monitor: Monitor) -> None:
    monitor.emit(Event("ranks", update(0, 100.0)))
    seen = visit(monitor.url)
    sizes = seen.page.evaluate(
        """() => {
          const work = structuredClone(shownPage.run.rank_work);
          for (let number = 1; number < 3000; number++) {
            const time = 100 + number;
            const ranks = work.ranks.map((row) => ({ ...row, since_s: time }));
            const part = (_, at) => [time + at / 20, time + (at + 1) / 20, 0.05, 0, 0];
            const slices = { 0: Array.from({ length: 20 }, part) };
            const lines = { slices, syncs: [[time, 1]], pace: { 0: [[time, number]] } };
            extendRankWork(work, { ...work, number, ranks, ...lines });
          }
          const computed = work.slices[0].reduce((sum, each) => sum + each[2], 0);
          const syncs = work.syncs.reduce((sum, [, count]) => sum + count, 0);
          const kept = [work.slices[0], work.syncs, work.pace[0], work.speed[0]];
          return [...kept.map(({ length }) => length), computed, syncs];
        }"""
    )
    assert all(size <= most for size, most in zip(sizes, (8000, 2000, 1001, 1001)))
    assert sizes[4:] == pytest.approx([0.75 + 2999, 3000])


def test_text_from_a_rank_is_only_text(visit: Any, tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>"
    changes = {"state": evil, "lost": evil, "device": evil, "host": evil}
    seen = visit(archived(tmp_path, update(0, 100.0, **changes)))
    assert seen.page.locator("#rank-work img").count() == 0
    assert seen.page.get_by_text(f"lost: {evil}").count() == 1
    assert seen.messages == []
