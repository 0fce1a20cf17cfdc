"""The comparison of runs: the table, its filter, the plot of settings, and the runs that are charted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flodl.monitor import Event, Journal
from flodl.monitor.exports import save_html
from flodl.monitor.server import FollowedRuns, Server

EVIL = "<img src=x onerror=alert(1)>"


def write_run(folder: Path, *, loss: float | None, epochs: int = 2, **settings: Any) -> Path:
    config = [{"path": path, "value": value, "origin": "--" + path} for path, value in settings.items()]
    with Journal.open(folder) as journal:
        facts = {"name": folder.name, "folder": folder.name, "total_epochs": epochs, "config": config}
        journal.write(Event("run_start", facts, time_s=0.0))
        for epoch in range(epochs if loss is not None else 0):
            value = (loss or 0.0) * (epochs - epoch)
            data = {"epoch": epoch, "metrics": {"loss": value, "accuracy": 1 - value / 10}, "duration_s": 1.0}
            journal.write(Event("epoch", data, time_s=1.0 + epoch))
        journal.write(Event("run_end", {"status": "finished", "duration_s": 9.0}, time_s=9.0))
    return folder


def write_sweep(folder: Path) -> Path:
    for name, loss, lr, optimizer in (
        ("run-1", 0.5, 0.1, "SGD"),
        ("run-2", 0.25, 0.001, "AdamW"),
        ("run-10", 1.0, 0.01, "AdamW"),
        ("run-11", None, 0.02, "SGD"),
    ):
        write_run(folder / name, loss=loss, lr=lr, optimizer=optimizer, seed=0)
    return folder


@contextmanager
def served(folder: Path) -> Iterator[str]:
    with Server(FollowedRuns([], folders=[folder]).runs, port=0) as server:
        yield server.url


def names(page: Any) -> list[str]:
    return page.locator("#runs-table tbody td:first-child").all_text_contents()


def heads(page: Any) -> list[str]:
    return page.locator("#runs-table th .name").all_text_contents()


def sort_by(page: Any, name: str) -> list[str]:
    page.locator("#runs-table th button", has=page.locator(f'.name[title="{name}"]')).click()
    return names(page)


def test_the_table_shows_best_last_time_and_the_settings_that_differ(visit: Any, tmp_path: Path) -> None:
    with served(write_sweep(tmp_path)) as url:
        seen = visit(url)
        assert heads(seen.page) == [
            "Run",
            "best accuracy",
            "last accuracy",
            "lr",
            "optimizer",
            "best loss",
            "Epoch",
            "Time",
            "State",
        ]
        cells = seen.page.locator("#runs-table tbody tr").first.locator("td").all_text_contents()
        assert cells == ["run-2", "0.9750", "0.9750", "0.001", "AdamW", "0.2500", "2", "9s", "finished"]
        assert "2 of 3 settings differ" in (seen.page.locator("#runs-aside").text_content() or "")
        assert seen.messages == []


def test_a_setting_that_a_later_start_changed_is_shown_with_its_earlier_value(
    visit: Any, tmp_path: Path
) -> None:
    for name, rates in (("run-1", (0.002, 0.001)), ("run-2", (0.001, 0.001))):
        with Journal.open(tmp_path / name) as journal:
            for at, lr in enumerate(rates):
                config = [{"path": "lr", "value": lr, "origin": "--lr"}]
                facts = {"name": name, "folder": name, "total_epochs": 2, "config": config}
                journal.write(Event("run_start", facts, time_s=10.0 * at))
                data = {"epoch": at, "metrics": {"loss": 1.0}, "duration_s": 1.0}
                journal.write(Event("epoch", data, time_s=10.0 * at + 1))
                journal.write(
                    Event("run_end", {"status": "finished", "duration_s": 2.0}, time_s=10.0 * at + 2)
                )
    with served(tmp_path) as url:
        seen = visit(url)
        column = heads(seen.page).index("lr")
        rows = seen.page.locator("#runs-table tbody tr")
        cells = [row.locator("td").all_text_contents()[column] for row in rows.all()]
        assert cells == ["0.002 → 0.001", "0.001"]
        table = seen.page.locator("#config-table").text_content() or ""
        assert "0.002 → 0.001" in table
        assert seen.messages == []


def test_a_setting_that_a_start_does_not_have_is_shown_as_not_set(visit: Any, tmp_path: Path) -> None:
    starts = {"run-1": ({}, {"mix": 1}), "run-2": ({"mix": 1}, {}), "run-3": ({"mix": 1}, {"mix": None})}
    for name, settings in starts.items():
        with Journal.open(tmp_path / name) as journal:
            for at, each in enumerate(settings):
                config = [{"path": path, "value": value, "origin": ""} for path, value in each.items()]
                facts = {"name": name, "total_epochs": 2, "config": [*config, {"path": "seed", "value": 0}]}
                journal.write(Event("run_start", facts, time_s=10.0 * at))
                data = {"epoch": at, "metrics": {"loss": 1.0}, "duration_s": 1.0}
                journal.write(Event("epoch", data, time_s=10.0 * at + 1))
                journal.write(Event("run_end", {"status": "finished"}, time_s=10.0 * at + 2))
    with served(tmp_path) as url:
        seen = visit(url)
        column = heads(seen.page).index("mix")
        rows = seen.page.locator("#runs-table tbody tr")
        cells = [row.locator("td").all_text_contents()[column] for row in rows.all()]
        assert sorted(cells) == ["1 → not set", "1 → null", "not set → 1"]
        assert seen.messages == []


def test_a_click_on_a_heading_sorts_the_best_first_and_a_second_click_reverses(
    visit: Any, tmp_path: Path
) -> None:
    with served(write_sweep(tmp_path)) as url:
        page = visit(url).page
        assert names(page) == ["run-2", "run-1", "run-10", "run-11"]
        assert sort_by(page, "best loss") == ["run-2", "run-1", "run-10", "run-11"]
        assert sort_by(page, "best loss") == ["run-10", "run-1", "run-2", "run-11"]
        assert page.locator("th[aria-sort=descending]").text_content() == "best loss↓"
        assert sort_by(page, "Run") == ["run-1", "run-2", "run-10", "run-11"]
        assert sort_by(page, "lr") == ["run-2", "run-10", "run-11", "run-1"]
        assert page.evaluate("document.activeElement.dataset.column") == "setting lr"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("adamw", ["run-2", "run-10"]),
        ("RUN-1 sgd", ["run-1", "run-11"]),
        ("lr<0.05", ["run-2", "run-10", "run-11"]),
        ("lr>=0.01 loss<=1", ["run-1", "run-10"]),
        ("optimizer=sgd", ["run-1", "run-11"]),
        ("optimizer!=sgd lr!=0.01", ["run-2"]),
        ("nothing", []),
    ],
)
def test_the_filter_matches_names_settings_and_comparisons(
    visit: Any, tmp_path: Path, text: str, expected: list[str]
) -> None:
    page = visit(
        save_html(tmp_path / "all.html", sorted(write_sweep(tmp_path / "runs").iterdir())).as_uri()
    ).page
    page.locator("#runs-filter").fill(text)
    assert names(page) == expected
    aside = page.locator("#runs-aside").text_content() or ""
    assert aside.startswith(f"{len(expected)} of 4 runs")
    assert page.locator("#runs-none").is_visible() is (not expected)


def test_the_chart_follows_the_table_and_the_checkboxes(visit: Any, tmp_path: Path) -> None:
    with served(write_sweep(tmp_path)) as url:
        seen = visit(url)
        page = seen.page
        assert seen.visible() == ["run-2", "run-1", "run-10"]
        assert page.locator("#shown-name").text_content() == "accuracy"
        page.locator("#runs-filter").fill("adamw")
        page.wait_for_function("() => document.querySelectorAll('#legend [aria-pressed=true]').length === 2")
        page.get_by_label("Chart run-10").uncheck()
        page.wait_for_function("() => document.querySelectorAll('#legend [aria-pressed=true]').length === 1")
        assert seen.visible() == ["run-2"]
        page.locator("#runs-metric").select_option("loss")
        page.wait_for_function("() => document.querySelector('#shown-name').textContent === 'loss'")
        assert heads(page)[1:3] == ["best loss", "last loss"]
        assert seen.messages == []


def test_a_range_on_an_axis_of_the_plot_filters_the_table(visit: Any, tmp_path: Path) -> None:
    with served(write_sweep(tmp_path)) as url:
        seen = visit(url)
        page = seen.page
        assert page.locator("#parallel-plot .axis text.label").evaluate_all(
            "all => all.map((each) => each.firstChild.data)"
        ) == ["lr", "optimizer", "best accuracy"]
        assert page.locator("#parallel-plot .run").count() == 4
        page.locator("#parallel-plot").scroll_into_view_if_needed()
        box = page.locator("#parallel-plot .grip").first.bounding_box()
        page.mouse.move(box["x"] + 16, box["y"] + 4)
        page.mouse.down()
        page.mouse.move(box["x"] + 16, box["y"] + 0.45 * box["height"], steps=4)
        page.mouse.up()
        assert names(page) == ["run-1", "run-11"]
        assert page.locator("#parallel-plot .faded").count() == 2
        page.locator("#parallel-reset").click()
        assert len(names(page)) == 4
        assert seen.messages == []


def test_a_run_opens_on_its_own_page_and_leads_back(visit: Any, tmp_path: Path) -> None:
    with served(write_sweep(tmp_path)) as url:
        archive = save_html(tmp_path / "all.html", [tmp_path / name for name in ("run-1", "run-2", "run-10")])
        for address in (url, archive.as_uri()):
            page = visit(address).page
            page.locator("#runs-table a", has_text="run-2").click()
            page.wait_for_selector("html[data-ready]")
            assert page.locator("#name").text_content() == "run-2"
            assert page.locator("#epochs-table tbody tr").count() == 2
            page.locator("#all-runs").click()
            page.wait_for_selector("#runs-table tbody tr")


def test_two_hundred_runs_are_listed_and_a_few_are_charted(visit: Any, tmp_path: Path) -> None:
    for number in range(200):
        write_run(tmp_path / f"{number:03d}", loss=1.0 + number, epochs=1, lr=0.001 * (number + 1))
    with served(tmp_path) as url:
        seen = visit(url)
        assert len(names(seen.page)) == 200
        assert seen.page.locator("#runs-table input:checked").count() == 10
        assert seen.visible() == [f"{number:03d}" for number in range(10)]
        assert len([request for request in seen.requests if "api/state" in request]) == 10
        assert seen.page.title() == "200 runs"
        assert seen.messages == []


def test_new_and_renamed_runs_of_a_folder_appear(visit: Any, tmp_path: Path) -> None:
    write_run(tmp_path / "first", loss=1.0, lr=0.1)
    with served(tmp_path) as url:
        page = visit(url).page
        assert names(page) == ["first"]
        write_run(tmp_path / "second", loss=0.5, lr=0.2)
        (tmp_path / "first").rename(tmp_path / "baseline")
        page.evaluate("shownPage.refresh()")
        page.wait_for_function("() => document.querySelectorAll('#runs-table tbody tr').length === 2")
        assert names(page) == ["second", "baseline"]


def test_a_sweep_without_runs_says_so(visit: Any, tmp_path: Path) -> None:
    with served(tmp_path) as url:
        seen = visit(url)
        assert seen.page.locator("#runs-none").text_content() == "No run has started yet."
        assert seen.messages == []


def test_names_and_settings_are_shown_as_text(visit: Any, tmp_path: Path) -> None:
    for number, name in enumerate((EVIL, "constructor", "__proto__")):
        settings = {EVIL: f"{EVIL}{number}", "constructor": number, "__proto__": {}}
        write_run(tmp_path / name, loss=1.0 + number, **settings)
    with served(tmp_path) as url:
        seen = visit(url)
        page = seen.page
        assert EVIL in heads(page)
        assert EVIL in names(page)
        assert f"{EVIL}0" in page.locator("#runs-table td").all_text_contents()
        assert page.locator("#parallel-plot .axis").count() >= 2
        page.locator("#runs-filter").fill("constructor=1")
        assert names(page) == ["constructor"]
        assert page.locator("img[src=x]").count() == 0
        assert seen.messages == []


def test_a_journal_that_becomes_unreadable_stays_in_the_table(visit: Any, tmp_path: Path) -> None:
    write_run(tmp_path / "good", loss=1.0, lr=0.1)
    write_run(tmp_path / "bad", loss=1.0, lr=0.2)
    (tmp_path / "bad/journal.jsonl").write_bytes(b"\x00garbage\n" * 30)
    with served(tmp_path) as url:
        seen = visit(url)
        assert sorted(names(seen.page)) == ["bad", "good"]
        assert seen.visible() == ["good"]
        assert seen.messages == []


@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_is_wider_than_the_window(visit: Any, tmp_path: Path, width: int) -> None:
    for number in range(4):
        settings = {
            f"some.rather.long.name.of.a.setting.{at}": f"value-{at}-{number % 2}" for at in range(20)
        }
        write_run(tmp_path / f"a-run-with-quite-a-long-name-{number}", loss=1.0 + number, **settings)
    with served(tmp_path) as url:
        page = visit(url, viewport={"width": width, "height": 844}).page
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert "8 of them not shown" in (page.locator("#runs-aside").text_content() or "")
