"""The archive: one file that contains all data, and no text of the run as markup."""

import base64
import gzip
import json
import re

from flodl.monitor import Event, Journal
from flodl.monitor.exports import archive, live_page, save_html

EVIL = "</script><script>alert(1)</script>"


def write_run(folder, name="run", epochs=3):
    with Journal.open(folder) as journal:
        journal.write(Event("run_start", {"name": name, "total_epochs": 5}, time_s=1.0))
        for epoch in range(epochs):
            data = {"epoch": epoch, "metrics": {"loss": 1.0 / (epoch + 1), EVIL: 1.0}, "duration_s": 2.0}
            journal.write(Event("epoch", data, time_s=3.0 + epoch))
        journal.write(Event("run_end", {"status": "finished"}, time_s=9.0))
    return folder


def embedded(text):
    packed = re.search(r'id="data">([^<]*)</script>', text)
    assert packed is not None
    return json.loads(gzip.decompress(base64.b64decode(packed[1])))


def test_an_archive_contains_the_complete_run(tmp_path):
    (state,) = embedded(archive([write_run(tmp_path)]))["states"]
    assert state["status"]["state"] == "finished"
    assert [record["metrics"]["loss"] for record in state["history"]] == [1.0, 0.5, 1.0 / 3]


def test_text_of_the_run_never_becomes_markup(tmp_path):
    text = archive([write_run(tmp_path, name=EVIL)])
    assert EVIL not in text
    assert "alert(1)" not in text.replace("&lt;script&gt;alert(1)", "")


def test_nothing_is_loaded_and_scripts_are_allowed_only_by_hash(tmp_path):
    text = archive([write_run(tmp_path)])
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]+"', text)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "default-src &#x27;none&#x27;" in policy[1]
    assert "connect-src &#x27;none&#x27;" in policy[1]
    assert "unsafe" not in policy[1]


def test_the_live_page_may_connect_only_to_its_own_server():
    page, policy = live_page()
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert b'id="data"></script>' in page


def test_an_archive_can_contain_several_runs(tmp_path):
    path = save_html(
        tmp_path / "both.html", [write_run(tmp_path / "a", "first"), write_run(tmp_path / "b", "second")]
    )
    assert [state["status"]["name"] for state in embedded(path.read_text())["states"]] == ["first", "second"]
