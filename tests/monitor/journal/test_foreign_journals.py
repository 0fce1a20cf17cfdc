"""Journals that are damaged or written by another program: everything readable is shown, nothing raises."""

import json
import os
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flodl.core import MonitorError
from flodl.monitor import read
from flodl.monitor.events import KINDS
from flodl.monitor.exports import archive, export_csv, write_log
from flodl.monitor.journal import FILE, Reader, dumps
from flodl.monitor.journal.schema import _TYPES
from flodl.monitor.server import FollowedRuns
from flodl.monitor.server.sse import frame
from flodl.monitor.snapshot import snapshot

EPOCH = {"id": 1, "kind": "epoch", "time_s": 1.0, "data": {"epoch": 0, "metrics": {"loss": 0.5}}}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = sorted({name for shape in _TYPES.values() for name in shape})
LINES = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(KINDS) | st.text(max_size=5),
        "time_s": st.floats(0, 2e9) | ANYTHING,
        "data": st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=6) | ANYTHING,
    },
    optional={"rank": st.integers(0, 2) | ANYTHING},
)


def write_journal(folder, *records):
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"id": number, **record}) for number, record in enumerate(records, start=1)]
    (folder / FILE).write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(LINES, max_size=6))
def test_any_lines_can_be_opened(tmp_path_factory, records):
    run = write_journal(tmp_path_factory.mktemp("run"), EPOCH, *records)
    state = json.loads(dumps(snapshot(run)))
    assert state["history"]
    assert "</html>" in archive([run])
    export_csv(run / "table.csv", run)
    write_log(run / "run.log", run)
    entries = list(read(run))
    assert frame(entries, rank=0, total_epochs=3).startswith(b"id: 1\nevent: epoch\n")
    assert Reader(run).last_id == entries[-1].id


@pytest.mark.parametrize(
    ("kind", "data", "kept"),
    [
        ("alert", {"message": "hot", "level": 7}, {"message": "hot"}),
        ("alert", {"message": 7}, None),
        ("epoch", {"epoch": "one", "metrics": {}}, None),
        (
            "epoch",
            {"epoch": 1, "metrics": {"loss": "nan?", "ok": 1}, "duration_s": "x"},
            {"epoch": 1, "metrics": {"ok": 1}},
        ),
        ("metrics", {"step": None, "metrics": {"loss": 1.0}}, None),
        ("run_end", {"status": "finished", "more": [1]}, {"status": "finished", "more": [1]}),
        ("unknown", {"anything": 1}, {"anything": 1}),
    ],
)
def test_fields_of_the_wrong_type_are_dropped_and_incomplete_events_are_skipped(tmp_path, kind, data, kept):
    first = {"kind": "run_end", "time_s": 1.0, "data": {"status": "finished"}}
    run = write_journal(tmp_path, first, {"kind": kind, "time_s": 1.0, "data": data})
    assert [entry.event.data for entry in read(run)][1:] == ([] if kept is None else [kept])


def test_a_file_that_is_not_a_journal_is_reported_as_unreadable(tmp_path):
    (tmp_path / FILE).write_bytes(bytes(range(256)) * 20)
    os.utime(tmp_path / FILE, (time.time() - 60,) * 2)
    status = snapshot(tmp_path)["status"]
    assert (status["state"], status["message"][:36]) == ("empty", "No line of this journal can be read.")


def test_an_empty_file_is_a_run_that_has_not_started(tmp_path):
    (tmp_path / FILE).touch()
    assert snapshot(tmp_path)["status"]["state"] in ("running", "lost")
    os.utime(tmp_path / FILE, (time.time() - 60,) * 2)
    status = snapshot(tmp_path)["status"]
    assert (status["state"], status["message"]) == ("empty", None)


def test_following_a_run_continues_after_a_damaged_line(tmp_path):
    run = write_journal(tmp_path, EPOCH)
    followed = FollowedRuns([run])
    with open(run / FILE, "a") as file:
        file.write('{"id": 2, "kind": "epoch", "time_s": 1, "data": {"epoch": []}}\n\x00\xff garbage\n')
        file.write(json.dumps({**EPOCH, "id": 3, "data": {"epoch": 1}}) + "\n")
    assert [entry.id for entry in followed.poll()] == [3]


@pytest.mark.parametrize("content", [b"import flodl\n", b"\x00\xff" * 40, b"word", b"[1]\n{}\n"])
def test_reading_a_file_that_is_not_a_journal_is_an_error(tmp_path, content):
    path = tmp_path / "anything.py"
    path.write_bytes(content)
    with pytest.raises(MonitorError, match=r"anything.py is not a journal: none of its lines can be read"):
        list(read(path))


@pytest.mark.parametrize("content", [b"", b'{"id":1,"kind":"run_st'])
def test_a_journal_without_a_complete_line_is_that_of_a_run_that_starts(tmp_path, content):
    (tmp_path / FILE).write_bytes(content)
    assert list(read(tmp_path)) == []
