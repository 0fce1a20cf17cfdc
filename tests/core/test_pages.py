"""Self-contained pages: one file, one policy, and one palette for all of them."""

import html
import re
from pathlib import Path

import pytest

import flodl
from flodl.core.pages import embedded
from flodl.monitor.exports import html as run_page
from flodl.monitor.timeline import html as timeline_page
from flodl.observe import plot

SOURCE = Path(flodl.__file__).parent
PAGES = {"trends": plot.PAGE, "timeline": timeline_page.PAGE, "run": run_page.PAGE}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_a_page_may_load_nothing_by_default(page):
    assert "default-src 'none'" in page.policy()
    assert "connect-src 'none'" in page.policy()
    assert "unsafe" not in page.policy()
    assert html.escape(page.policy(), quote=True) in page.text(title="", data="")


def test_a_title_is_text_whatever_it_contains():
    text = PAGES["trends"].text(title="<b>$data $policy</b>", data="DATA")
    assert text.count("&lt;b&gt;$data $policy&lt;/b&gt;") == 2
    assert text.count("DATA") == 1


def test_data_cannot_close_the_script_element():
    assert "</script" not in embedded({"</script>": "</script>"})


def test_the_palette_is_in_one_file():
    colors = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.css")
        if "vendor" not in path.parts and re.search(r"#[0-9a-f]{6}\b", path.read_text())
    }
    assert colors == {"core/pages/palette.css"}


def test_every_style_and_script_is_part_of_a_page():
    used = {name for page in PAGES.values() for name in (*page.styles, *page.scripts)}
    shared = {f"core/pages/{name}" for name in ("palette.css", "frame.css", "frame.js", "lines.js")}
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*")
        if path.suffix in (".css", ".js") and "vendor" not in path.parts and "cli" not in path.parts
    }
    assert found == used | shared
