"""The journal: no entry is lost or numbered twice, whatever happens to the process or the file."""

import json
import math
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flodl.core import MonitorError
from flodl.monitor.events import Event
from flodl.monitor.journal import FILE, Entry, Journal, Reader, decode, dumps, encode, read
from flodl.monitor.journal.index import FOLDER, MARK


def step(number, **metrics):
    return Event("metrics", {"epoch": 0, "step": number, "metrics": metrics}, time_s=float(number))


def write(folder, *events):
    with Journal.open(folder) as journal:
        for event in events:
            journal.write(event)
    return folder


def table(folder, kind="metrics"):
    """Return the only table of a kind, by column."""
    (found,) = Reader(folder).tables(kind)
    return dict(zip(found.header.columns, found.rows.T.tolist()))


def test_entries_are_read_in_order_with_numbers_from_1(tmp_path):
    write(tmp_path, step(0, loss=0.5), Event("alert", {"message": "hot"}, time_s=3.0, rank=2))
    first, second = read(tmp_path)
    assert (first.id, second.id) == (1, 2)
    assert first.event == step(0, loss=0.5)
    assert second.event == Event("alert", {"message": "hot"}, time_s=3.0, rank=2)
    assert [entry.id for entry in read(tmp_path, after=1)] == [2]


def test_a_continued_journal_continues_its_numbering(tmp_path):
    write(tmp_path, step(0, loss=1.0))
    write(tmp_path, step(1, loss=2.0), step(2, loss=3.0))
    assert [entry.id for entry in read(tmp_path)] == [1, 2, 3]
    assert table(tmp_path)["loss"] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("junk", [b'{"id":2,"kind":"met', b"\x00\xff\n", b"[]\n", b'{"id":"x"}\n', b"null\n"])
def test_a_damaged_line_is_skipped_and_does_not_affect_the_next(tmp_path, junk):
    write(tmp_path, step(0, loss=1.0))
    with open(tmp_path / FILE, "ab") as file:
        file.write(junk)
    assert [entry.id for entry in read(tmp_path)] == [1]
    write(tmp_path, step(1, loss=2.0))
    entries = [entry.event for entry in read(tmp_path)]
    assert [event.data["step"] for event in entries if event.kind == "metrics"] == [0, 1]
    (alert,) = [event.data["message"] for event in entries if event.kind == "alert"]
    assert alert == f"{tmp_path / FILE}: skipped 1 damaged line (line 2)."
    assert table(tmp_path)["step"] == [0.0, 1.0]


def test_the_file_is_strict_json_and_preserves_non_finite_numbers(tmp_path):
    write(tmp_path, step(0, loss=math.nan, gain=math.inf))
    text = (tmp_path / FILE).read_text()
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    (entry,) = read(tmp_path)
    assert math.isnan(entry.event.data["metrics"]["loss"])
    assert entry.event.data["metrics"]["gain"] == math.inf
    assert math.isnan(table(tmp_path)["loss"][0])


def test_tensors_are_converted_by_the_journal(tmp_path):
    write(tmp_path, step(0, loss=torch.tensor(0.5), wrong=torch.zeros(2)))
    (entry,) = read(tmp_path)
    assert entry.event.data["metrics"]["loss"] == 0.5
    assert math.isnan(entry.event.data["metrics"]["wrong"])


def test_a_second_writer_raises_until_the_first_is_closed(tmp_path):
    with Journal.open(tmp_path), pytest.raises(MonitorError, match="is in use by another run"):
        Journal.open(tmp_path)
    Journal.open(tmp_path).close()


def test_a_folder_that_cannot_be_created_raises(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        MonitorError, match=r"cannot write the journal in .*: .* Pass a folder that can be created"
    ):
        Journal.open(tmp_path / "file" / "run")


def test_a_folder_without_a_journal_raises_with_nearby_journals(tmp_path):
    write(tmp_path / "first", step(0, loss=1.0))
    with pytest.raises(MonitorError, match=r"has no journal. Its folders .*first have one"):
        Reader(tmp_path)


def damage_nothing(folder):
    pass


def damage_by_removal(folder):
    shutil.rmtree(folder / FOLDER)


def damage_the_mark(folder):
    (folder / FOLDER / MARK).write_bytes(b"nonsense")


def damage_by_a_crash_before_the_mark(folder):
    """Restore an old mark, so that the index has rows that the mark does not cover."""
    old = (folder / FOLDER / MARK).read_bytes()
    write(folder, step(3, loss=4.0), Event("alert", {"message": "late"}, time_s=1.0))
    (folder / FOLDER / MARK).write_bytes(old)


@pytest.mark.parametrize("damage", [damage_nothing, damage_by_removal, damage_the_mark])
def test_the_index_can_be_lost_at_any_time(tmp_path, damage):
    write(tmp_path, *(step(number, loss=number + 1.0) for number in range(3)), Event("save", {"path": "a"}))
    damage(tmp_path)
    assert table(tmp_path)["loss"] == [1.0, 2.0, 3.0]
    assert [entry.event.data["path"] for entry in Reader(tmp_path).entries({"save"})] == ["a"]


@pytest.mark.parametrize("is_continued", [False, True])
def test_the_index_of_a_different_journal_is_not_used(tmp_path, is_continued):
    write(tmp_path / "short", *(step(number, loss=-1.0) for number in range(3)))
    write(tmp_path / "long", *(step(number, loss=number + 1.0) for number in range(20)))
    shutil.copy(tmp_path / "long" / FILE, tmp_path / "short" / FILE)
    if is_continued:
        write(tmp_path / "short", step(20, loss=21.0))
    assert table(tmp_path / "short")["loss"] == [number + 1.0 for number in range(20 + is_continued)]


def test_an_index_of_another_version_is_rebuilt(tmp_path, monkeypatch):
    monkeypatch.setattr("flodl.monitor.journal.index._VERSION", 1)
    write(tmp_path, step(0, loss=1.0))
    mark = (tmp_path / FOLDER / MARK).read_bytes()
    monkeypatch.undo()
    assert Reader(tmp_path).last_id == 1
    assert (tmp_path / FOLDER / MARK).read_bytes() != mark


def test_rows_after_the_mark_count_once(tmp_path):
    write(tmp_path, *(step(number, loss=number + 1.0) for number in range(3)))
    damage_by_a_crash_before_the_mark(tmp_path)
    both = Reader(tmp_path).tables("metrics")
    assert [row for found in both for row in found.rows[:, 4].tolist()] == [1.0, 2.0, 3.0, 4.0]
    assert len(Reader(tmp_path).entries({"alert"})) == 1
    write(tmp_path, step(4, loss=5.0))
    assert table(tmp_path)["loss"] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert len(Reader(tmp_path).entries({"alert"})) == 1


def test_a_reader_does_not_touch_the_index_of_a_live_writer(tmp_path):
    with Journal.open(tmp_path) as journal:
        journal.write(step(0, loss=1.0))
        journal.flush()
        (tmp_path / FOLDER / MARK).write_bytes(b"")
        assert table(tmp_path)["loss"] == [1.0]
        journal.write(step(1, loss=2.0))
    assert table(tmp_path)["loss"] == [1.0, 2.0]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [FOLDER]


def test_many_combinations_of_metrics_are_stored_completely_in_few_tables(tmp_path):
    write(tmp_path, *(step(number, **{f"m{number % 90}": 1.0, f"n{number}": 2.0}) for number in range(200)))
    tables = Reader(tmp_path).tables("metrics")
    found = [name for one in tables for name in one.header.columns[4:]]
    assert sum(len(one.rows) * (len(one.header.columns) - 4) for one in tables) == 400
    assert set(found) == {f"m{number}" for number in range(90)} | {f"n{number}" for number in range(200)}


def test_resources_are_stored_by_dotted_name_and_the_first_entry_keeps_its_text(tmp_path):
    reading = {"cpu_pct": 5.0, "gpus": [{"name": "H200", "util_pct": 80.0}]}
    write(tmp_path, *(Event("resources", reading, time_s=float(second)) for second in range(3)))
    assert table(tmp_path, "resources")["gpus.0.util_pct"] == [80.0, 80.0, 80.0]
    (first,) = Reader(tmp_path).entries({"resources"})
    assert first.event.data["gpus"][0]["name"] == "H200"


def test_listeners_receive_every_entry_once_after_it_is_on_disk(tmp_path):
    received = []
    with Journal.open(tmp_path) as journal:
        journal.subscribe(
            lambda batch: received.extend((entry.id, len(list(read(tmp_path)))) for entry in batch)
        )
        for number in range(5):
            journal.write(step(number, loss=1.0))
    assert [number for number, _ in received] == [1, 2, 3, 4, 5]
    assert all(on_disk >= number for number, on_disk in received)


def test_a_failing_listener_is_removed_and_a_listener_may_flush(tmp_path, capsys):
    def broken(batch):
        raise RuntimeError("out of paper")

    received = []
    with Journal.open(tmp_path) as journal:
        journal.subscribe(broken)
        journal.subscribe(lambda batch: (journal.flush(), received.extend(entry.id for entry in batch)))
        for number in range(3):
            journal.write(step(number, loss=1.0))
            journal.flush()
    assert received == [1, 2, 3]
    assert capsys.readouterr().err.count("a journal listener failed: RuntimeError: out of paper") == 1


def test_events_from_many_threads_are_all_written(tmp_path):
    with Journal.open(tmp_path) as journal:
        threads = [
            threading.Thread(target=lambda: [journal.write(step(number, loss=1.0)) for number in range(500)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [entry.id for entry in read(tmp_path)] == list(range(1, 2001))


def test_an_event_after_close_is_ignored(tmp_path):
    journal = Journal.open(tmp_path)
    journal.close()
    journal.write(step(0, loss=1.0))
    journal.flush()
    journal.close()
    assert list(read(tmp_path)) == []


def test_reading_does_not_import_torch(tmp_path):
    write(tmp_path, step(0, loss=1.0), Event("epoch", {"epoch": 0, "metrics": {"loss": 1.0}}))
    code = (
        "import sys, flodl.monitor.server\nfrom flodl.monitor.exports import archive\n"
        f"from flodl.monitor.exports import export_csv; archive([{str(tmp_path)!r}]); "
        f"export_csv({str(tmp_path / 'out.csv')!r}, {str(tmp_path)!r}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.characters(categories=["Cs"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)  # the machine may be busy
@given(data=st.dictionaries(st.text(), values, max_size=3))
def test_any_event_is_encoded_as_one_line_that_can_be_decoded(data):
    line = encode(Entry(1, Event("alert", {**data, "message": "hot"}, time_s=1.0)))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    json.loads(line, parse_constant=lambda word: pytest.fail(word))
    entry = decode(line)
    assert entry is not None
    assert entry.event.data.keys() | {"level", "path"} == data.keys() | {"message", "level", "path"}


@given(st.binary(max_size=60))
def test_decoding_never_raises(line):
    assert decode(line) is None or isinstance(decode(line), Entry)


def test_objects_are_encoded_as_text():
    assert dumps({"path": Path("runs"), 3: torch.tensor([1.0, 2.0])}) == b'{"path":"runs","3":[1.0,2.0]}'
