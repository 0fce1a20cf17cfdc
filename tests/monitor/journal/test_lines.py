"""Damaged lines of a journal are skipped, reported, and hide nothing else."""

import json
import os

import pytest

from flodl.core import MonitorError
from flodl.monitor import Event, Journal, Monitor, read
from flodl.monitor.journal import FILE, Reader, damaged_lines, decode, read_lines
from flodl.monitor.journal import lines as lines_module
from flodl.monitor.server import FollowedRuns
from flodl.monitor.snapshot import snapshot


def line(id, number=0, **fields):
    data = {"epoch": number, "metrics": {"loss": 0.5}}
    record = {"id": id, "kind": "epoch", "time_s": 1.0, "rank": 0, "data": data, **fields}
    return json.dumps(record).encode() + b"\n"


def journal(folder, *content):
    (folder / FILE).write_bytes(b"".join(content))
    return folder


GOOD = [line(number, number - 1) for number in range(1, 6)]
DAMAGED = {
    "a number beyond 64 bits": line(2**70),
    "a number beyond a double": line(2**60),
    "a number with thousands of digits": b'{"id":' + b"9" * 5000 + b',"kind":"epoch","time_s":1,"data":{}}\n',
    "a number that jumps": line(10**9),
    "a number that was used before": line(2),
    "zero": line(0),
    "a negative number": line(-3),
    "a number as text": line("4"),
    "a fraction": line(4.5),
    "true": line(True),
    "a time that is not a number": line(4, time_s="now"),
    "NaN": GOOD[3].replace(b"1.0", b"NaN"),
    "an infinite time": GOOD[3].replace(b"1.0", b"1e999"),
    "a negative rank": line(4, rank=-1),
    "a huge rank": line(4, rank=2**80),
    "a kind that is a list": line(4, kind=["epoch"]),
    "an epoch with hundreds of digits": line(4, 10**400),
    "a negative epoch": line(4, -1),
    "data that is a list": line(4, data=[1]),
    "invalid UTF-8": b'{"id":4,"kind":"\xff\xfe"}\n',
    "deep nesting": line(4, data={"epoch": 3, "x": json.loads("[" * 200 + "]" * 200)}),
    "very deep nesting": b'{"id":4,"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "zeros": b"\0" * 512 + b"\n",
}


# On the first line, any small number is the first one that is used.
CASES = [(name, at) for name in DAMAGED for at in (0, 3, 5) if at or "used before" not in name]


@pytest.mark.parametrize(("name", "position"), CASES)
def test_a_damaged_line_hides_no_epoch_and_the_run_can_continue(tmp_path, name, position):
    journal(tmp_path, *GOOD[:position], DAMAGED[name], *GOOD[position:])
    assert [entry.id for entry in read(tmp_path)] == [1, 2, 3, 4, 5]
    assert len(damaged_lines(tmp_path / FILE)) == 1
    assert [record["epoch"] for record in snapshot(tmp_path)["history"]] == [1, 2, 3, 4, 5]
    with Monitor(7, tmp_path, console=False, resources=False) as monitor:
        assert [record["epoch"] for record in monitor.history] == [1, 2, 3, 4, 5]
        monitor.log(5, {"loss": 0.25}, duration=1.0)
    assert [record["epoch"] for record in snapshot(tmp_path)["history"]] == [1, 2, 3, 4, 5, 6]


def test_continuing_a_damaged_journal_says_which_lines_are_skipped_once(tmp_path, capsys):
    journal(tmp_path, *GOOD[:2], b"garbage\n", *GOOD[2:], b"more\n")
    for _ in range(2):
        Monitor(7, tmp_path, console=False, resources=False).close()
    alerts = [entry.event.data["message"] for entry in read(tmp_path) if entry.event.kind == "alert"]
    assert alerts == [f"{tmp_path / FILE}: skipped 2 damaged lines (lines 3, 7)."]


def test_a_line_that_is_damaged_after_it_was_indexed_is_reported(tmp_path, capsys):
    with Journal.open(tmp_path) as written:
        for number in range(20):
            written.write(Event("epoch", {"epoch": number, "metrics": {}}))
    content = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(content.replace(b'"epoch":10,', b'"epoch":xx,'))
    Monitor(7, tmp_path, console=False, resources=False).close()
    assert "1 lines were damaged after they were written" in capsys.readouterr().err


def test_a_number_may_jump_if_the_next_line_continues_from_it(tmp_path):
    journal(tmp_path, *GOOD[:2], line(500, 2), line(501, 3))
    assert [entry.id for entry in read(tmp_path)] == [1, 2, 500, 501]
    assert Reader(tmp_path).last_id == 501


def test_the_last_line_may_skip_some_numbers_because_a_full_disk_costs_entries(tmp_path):
    journal(tmp_path, *GOOD[:2], line(40, 2))
    assert [entry.id for entry in read(tmp_path)] == [1, 2, 40]


def test_a_follower_waits_for_the_next_line_before_it_believes_a_jump(tmp_path):
    followed = FollowedRuns([journal(tmp_path, *GOOD[:2])])
    with open(tmp_path / FILE, "ab") as file:
        file.write(line(10**12))
        file.flush()
        assert followed.poll() == []
        file.write(b"".join(GOOD[2:4]))
        file.flush()
    assert [entry.id for entry in followed.poll()] == [3, 4]


def test_a_line_that_is_too_long_is_skipped_without_reading_it_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 200)
    journal(tmp_path, GOOD[0], b"x" * 1_000_000 + b"\n", GOOD[1], b"y" * 1000)
    found = list(read_lines(tmp_path / FILE))
    assert [each.entry and each.entry.id for each in found] == [1, None, 2]
    assert found[1].end - found[1].offset == 1_000_001


def test_a_large_journal_is_checked_without_decoding_every_line(tmp_path, monkeypatch):
    monkeypatch.setattr(lines_module, "_MAX_DECODED_BYTES", 10)
    with Journal.open(tmp_path) as written:
        for number in range(5):
            written.write(Event("epoch", {"epoch": number, "metrics": {}}))
    content = (tmp_path / FILE).read_bytes().splitlines(keepends=True)
    journal(tmp_path, *content[:3], b"garbage\n", *content[3:])
    assert damaged_lines(tmp_path / FILE) == [len(b"".join(content[:3]))]


class Rude:
    def __str__(self):
        raise ValueError("no")


@pytest.mark.parametrize("extra", [Rude(), "x" * (1 << 25), None], ids=["raises", "too long", "cycle"])
def test_an_event_that_cannot_be_written_is_replaced_by_an_alert(tmp_path, extra):
    data = {"message": "hot"}
    data["extra"] = data if extra is None else extra
    with Journal.open(tmp_path) as written:
        written.write(Event("alert", data))
        written.write(Event("epoch", {"epoch": 0, "metrics": {}}))
    first, second = (entry.event for entry in read(tmp_path))
    assert second.kind == "epoch"
    assert first.data["message"].endswith("It is not in the journal.")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_a_pipe_in_place_of_a_journal_raises_instead_of_waiting(tmp_path):
    os.mkfifo(tmp_path / FILE)
    with pytest.raises(MonitorError, match="is not a regular file"):
        Journal.open(tmp_path)
    with pytest.raises(MonitorError, match="is not a regular file"):
        Reader(tmp_path)


def test_the_numbers_of_a_decoded_line_can_be_stored_as_doubles():
    huge = json.dumps({"step": 1, "metrics": {"loss": 10**400, "ok": 1}})
    entry = decode(b'{"id":1,"kind":"metrics","time_s":1,"data":' + huge.encode() + b"}")
    assert entry is not None
    assert entry.event.data["metrics"] == {"ok": 1}
