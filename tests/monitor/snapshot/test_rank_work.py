"""The ranks in the state of a run: read from the journal, thinned for long runs."""

import pytest

from flodl.monitor import Event, Journal
from flodl.monitor.journal import Reader
from flodl.monitor.snapshot import rank_work, snapshot


def write(folder, count):
    with Journal.open(folder) as journal:
        for number in range(count):
            row = {"rank": 0, "since_s": 101.0 + number, "train_s": 0.5 * (number + 1)}
            slices = {"0": [[100.0 + number, 101.0 + number, 0.5, 0.0, 0.0]]}
            data = {"start_s": 100.0, "number": number, "ranks": [row], "slices": slices}
            journal.write(Event("ranks", data))
    return Reader(folder)


def test_a_long_run_is_read_in_parts_and_keeps_its_totals(tmp_path):
    reader = write(tmp_path / "run", 500)
    found = rank_work(reader, max_events=20)
    assert len(found["slices"]["0"]) == 20
    assert sum(each[2] for each in found["slices"]["0"]) == pytest.approx(250.0)
    assert len(rank_work(reader)["slices"]["0"]) == 500


def test_a_run_on_one_device_has_none(tmp_path):
    with Journal.open(tmp_path / "run") as journal:
        journal.write(Event("epoch", {"epoch": 0, "metrics": {"loss": 1.0}}))
    assert snapshot(tmp_path / "run")["rank_work"] == {}
