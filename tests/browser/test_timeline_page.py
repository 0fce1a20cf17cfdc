"""The timeline page in a real browser: no errors or requests, names as text, working controls."""

import pytest

from flodl.core.files import write_atomic
from flodl.monitor.timeline import Mark, Record, Sample
from flodl.monitor.timeline.html import page

EVIL = "</script><script>alert(1)</script>"


def make_record():
    samples = []
    for index in range(1, 101):
        is_waiting = 40 <= index < 60
        gpu = {
            "device": 0,
            "name": EVIL,
            "util_pct": 0.0 if is_waiting else 95.0,
            "vram_used_bytes": 1,
            "vram_total_bytes": 2,
        }
        phases = {"data": 0.1} if is_waiting else {"step": 0.08, EVIL: 0.02}
        samples.append(
            Sample(
                index / 10, phases, 2, 30.0, 110.0, ram_used_bytes=2**30, ram_total_bytes=2**33, gpus=(gpu,)
            )
        )
    marks = (Mark(2.0, "gc", 0.3, "generation 2"), Mark(5.0, EVIL, 0.0, EVIL), Mark(8.0, "epoch", 0.0, "1"))
    return Record(tuple(samples), marks)


@pytest.fixture
def visit(browser, tmp_path):
    path = write_atomic(tmp_path / "timeline.html", page(make_record(), title=EVIL))
    messages, requests = [], []

    def open_page(**options):
        found = browser.new_page(viewport={"width": 1200, "height": 900}, **options)
        found.on("console", lambda message: messages.append(message.text))
        found.on("pageerror", lambda error: messages.append(str(error)))
        found.on("dialog", lambda dialog: (messages.append("dialog"), dialog.dismiss()))
        found.on("request", lambda request: requests.append(request.url))
        found.goto(path.as_uri())
        return found

    yield open_page
    assert messages == []
    assert set(requests) == {path.as_uri()}


def window(found):
    return found.evaluate("timeline.lanes.map(({ plot }) => [plot.scales.x.min, plot.scales.x.max])")


def test_everything_is_shown_as_text(visit):
    found = visit()
    assert found.locator("h1").text_content() == EVIL
    assert found.locator("#verdict strong").text_content() == "compute-bound"
    assert found.locator(".lane h2").all_text_contents() == [
        "GPU 0",
        "Where the time goes",
        "Processor",
        "Memory",
    ]
    assert found.locator(".lane .note").first.text_content() == EVIL
    assert EVIL in found.locator("#kinds .label").all_text_contents()
    assert found.locator("#gaps .label").all_text_contents() == ["GPU 0 at 4.00 s: waiting for data (100 %)"]


def test_a_click_on_a_gap_zooms_to_it(visit):
    found = visit()
    whole = window(found)
    found.locator("#gaps .row").click()
    zoomed = window(found)
    assert all(low < 4.0 and high > 6.0 and high - low < 6.0 for low, high in zoomed)
    assert len({tuple(each) for each in zoomed}) == 1
    found.locator("#reset").click()
    assert window(found) == whole


def test_dragging_zooms_every_lane_and_a_double_click_resets(visit):
    found = visit()
    whole = window(found)
    box = found.locator(".lane .u-over").nth(1).bounding_box()
    middle = box["y"] + box["height"] / 2
    found.mouse.move(box["x"] + box["width"] * 0.25, middle)
    found.mouse.down()
    found.mouse.move(box["x"] + box["width"] * 0.5, middle, steps=4)
    found.mouse.up()
    found.wait_for_function("!document.getElementById('reset').disabled")
    low, high = window(found)[0]
    assert 2.0 < low < 3.0
    assert 4.5 < high < 5.5
    assert len({tuple(each) for each in window(found)}) == 1
    found.locator(".lane .u-over").first.dblclick()
    found.wait_for_function("document.getElementById('reset').disabled")
    assert window(found) == whole


def test_keys_move_and_zoom(visit):
    found = visit()
    found.locator("#lanes").focus()
    found.keyboard.press("+")
    low, high = window(found)[0]
    found.keyboard.press("ArrowRight")
    assert window(found)[0][0] > low
    found.keyboard.press("Escape")
    assert window(found)[0][1] - window(found)[0][0] > high - low


def test_the_cursor_shows_the_values_of_all_lanes(visit):
    found = visit()
    box = found.locator(".lane .u-over").first.bounding_box()
    found.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    numbers = found.locator(".lane .number").all_text_contents()
    assert numbers[:2] == ["0 %", "50 %"]
    assert "at 5.0" in found.locator("#summary").text_content()


def test_notes_are_listed_and_can_be_jumped_to(visit):
    found = visit()
    notes = found.locator("#notes .row")
    assert notes.locator(".label").all_text_contents() == [f"{EVIL}: {EVIL}"]
    notes.first.click()
    assert all(low < 5.0 < high and high - low < 1 for low, high in window(found))
    assert found.evaluate("timeline.notesAt(50)") == [f"{EVIL}: {EVIL}"]


def test_a_kind_of_mark_can_be_hidden(visit):
    found = visit()
    button = found.locator("#kinds .row").first
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert found.evaluate("timeline.visibleMarks().length") == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_lines_have_the_colors_of_the_theme(visit, scheme):
    found = visit(color_scheme=scheme)
    background = found.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(244, 245, 247)" if scheme == "light" else "rgb(14, 17, 22)")
    before = found.evaluate("timeline.lanes[0].plot.series[1].stroke()")
    found.locator("#theme").click()
    found.locator("#theme").click() if scheme == "light" else None
    assert found.evaluate("timeline.lanes[0].plot.series[1].stroke()") != before


def test_a_record_without_samples_still_opens(browser, tmp_path):
    path = write_atomic(tmp_path / "empty.html", page(Record(())))
    found = browser.new_page()
    errors = []
    found.on("pageerror", lambda error: errors.append(str(error)))
    found.goto(path.as_uri())
    assert found.locator("#verdict strong").text_content() == "unknown"
    assert errors == []
