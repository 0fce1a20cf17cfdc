"""Journals with any content: damaged lines are skipped, the rest is shown, and the run continues."""

import json
import shutil
from contextlib import suppress

import pytest

from flodl.core.errors import MonitorError
from flodl.monitor import Monitor, read
from flodl.monitor.exports import archive, csv_text, log_text
from flodl.monitor.journal import FILE, Reader, damaged_lines, dumps
from flodl.monitor.journal.index import FOLDER
from flodl.monitor.server import FollowedRuns
from flodl.monitor.server.sse import frame
from flodl.monitor.snapshot import snapshot

NUMBERS = [
    b"-1", b"0", b"1", b"1.5", b"1e999", b"-1e999", b"NaN", b"Infinity", b"9" * 19, b"9" * 400, b"9" * 5000,
    b"9007199254740993", b"true", b"null", b'"7"', b"[]", b"{}", b'"nan"', b'"\\ud800"', b"[" * 2000,
]  # fmt: skip
LINES = [
    b"", b"garbage", b"\0" * 100, b"\xff\xfe", b"{}", b"[]", b"null", b"7", b'{"id":1}',
    b'{"id":3,"kind":"ep', b'{"id":2,"kind":"epoch","time_s":1,"data":[]}', b"[" * 100_000,
    b"x" * 100_000, b"\r",
]  # fmt: skip


@pytest.fixture
def written(tmp_path):
    """The content of a journal with every kind of event."""
    with Monitor(9, tmp_path / "original", config={"lr": 0.1}, console=False, resources=False) as monitor:
        for epoch in range(4):
            monitor.log_step(epoch, {"loss": 0.5, "nan": float("nan")}, epoch=epoch)
            monitor.progress(epoch, 1, 1)
            monitor.alert(f"epoch {epoch}")
            monitor.log(epoch, {"loss": 0.5, "inf": float("inf")}, duration=1.0)
        monitor.describe({"schedule": {"warmup": 3}})
    return (tmp_path / "original" / FILE).read_bytes().splitlines()


def with_other_value(rng, line):
    """Replace one value in a line of JSON."""
    record = json.loads(line)
    place = rng.choice([record, record["data"]])
    if not place:
        return line
    place[rng.choice(list(place))] = "@"
    return json.dumps(record).encode().replace(b'"@"', rng.choice(NUMBERS))


def mutate(rng, lines):
    """Return the lines with a few random changes."""
    lines = list(lines)
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(lines))
        change = rng.randrange(6)
        if change == 0:
            lines.insert(at, rng.choice(LINES))
        elif change == 1:
            lines[at : at + rng.randint(1, 3)] = [rng.choice(LINES)]
        elif change == 2:
            lines.insert(at, rng.choice(lines))
        elif change == 3:
            cut = rng.randint(0, len(lines[at]))
            lines[at] = lines[at][:cut] + bytes([rng.randrange(256)]) + lines[at][cut + rng.randint(0, 3) :]
        elif change == 4:
            try:
                lines[at] = with_other_value(rng, lines[at])
            except (ValueError, KeyError, TypeError, RecursionError):
                lines[at] = b""
        else:
            del lines[at]
            lines = lines or [b""]
    return lines


def test_a_mutated_journal_is_shown_and_continued(tmp_path, fuzz, written):
    def check(rng):
        run = tmp_path / "run"
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
        content = b"\n".join(mutate(rng, written)) + rng.choice([b"\n", b"\n", b'\n{"id":99,"ki'])
        (run / FILE).write_bytes(content)
        entries = list(read(run))
        ids = [entry.id for entry in entries]
        assert ids == sorted(set(ids))
        state = json.loads(dumps(snapshot(run, max_points=100)))
        assert state["last_id"] == (ids[-1] if ids else 0)
        assert b"event:" in frame(entries, rank=0, total_epochs=3) or not entries
        assert damaged_lines(run / FILE) == sorted(set(damaged_lines(run / FILE)))
        for export in (csv_text, log_text):
            with suppress(MonitorError):  # there are no epochs
                assert export(run)
        if rng.random() < 0.05:
            assert "</html>" in archive([run])
        followed = FollowedRuns([run])
        with Monitor(9, run, console=False, resources=False) as monitor:
            assert [each["epoch"] for each in monitor.history] == [each["epoch"] for each in state["history"]]
            monitor.log(40, {"loss": 1.0}, duration=1.0)
        assert [entry.event.kind for entry in followed.poll()][-1] == "run_end"
        after = snapshot(run, max_points=2)
        assert after["history"][-1]["epoch"] == 41
        assert after["status"]["state"] == "finished"

    fuzz(check)


def test_one_damaged_line_hides_no_other_epoch(tmp_path, fuzz, written):
    def check(rng):
        lines = list(written)
        at = rng.randrange(len(lines))
        record = json.loads(lines[at])
        if rng.random() < 0.5:
            lines[at] = rng.choice(LINES)
        else:
            lines[at] = json.dumps({**record, "id": "@"}).encode().replace(b'"@"', rng.choice(NUMBERS))
        (tmp_path / FILE).write_bytes(b"\n".join(lines) + b"\n")
        shutil.rmtree(tmp_path / FOLDER, ignore_errors=True)
        expected = {1, 2, 3, 4}
        if record["kind"] == "epoch":
            expected -= {record["data"]["epoch"] + 1}
        shown = {each["epoch"] for each in snapshot(tmp_path, max_points=2)["history"]}
        assert expected <= shown <= {1, 2, 3, 4}

    fuzz(check)


def test_a_mutated_index_is_rebuilt_or_ignored(tmp_path, fuzz, written, monkeypatch):
    monkeypatch.setattr("flodl.monitor.journal.reader.MARK_ATTEMPTS", 1)

    def check(rng):
        run = tmp_path / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(tmp_path / "original", run)
        file = rng.choice(sorted((run / FOLDER).iterdir()))
        content = bytearray(file.read_bytes())
        for _ in range(rng.randint(1, 8)):
            at = rng.randint(0, len(content))
            content[at : at + rng.choice([0, 1, 8])] = bytes(
                [rng.choice([0, 1, 127, 255, rng.randrange(256)])]
            )
        file.write_bytes(bytes(content))
        assert Reader(run).last_id == len(written)
        state = json.loads(dumps(snapshot(run, max_points=100)))
        assert state["last_id"] == len(written)

    fuzz(check)
