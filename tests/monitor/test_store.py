"""A disk that is full and a folder that is deleted: the run goes on, and so does everything that shows it."""

import contextlib
import json
import resource
import shutil
from pathlib import Path

import pytest

from flodl.monitor import Event, Journal, Monitor, read
from flodl.monitor.journal import FILE, store
from flodl.monitor.journal.index import FOLDER


def step(number):
    return Event("metrics", {"step": number, "metrics": {"loss": float(number)}}, time_s=float(number))


@contextlib.contextmanager
def full_disk(path: Path):
    """No file grows beyond the size that the journal has now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 40, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def monitor(tmp_path):
    made = Monitor(5, tmp_path / "run", console=False, resources=False, step_rate=None)
    made.emit(Event("alert", {"message": "x" * 2_000_000}))  # other files, as those of a test, stay smaller
    made.log(0, {"loss": 0.5}, duration=1.0)
    made._journal.flush()
    yield made
    made.close()


def alerts(run):
    return [entry.event.data["message"] for entry in run if entry.event.kind == "alert"][1:]


def test_what_a_full_disk_does_not_take_is_told_and_written_later(tmp_path, monitor, monkeypatch):
    heard, shown = [], []
    monitor._journal.subscribe(heard.extend)
    monitor._views._views.append(shown.append)
    path = monitor.run_dir / FILE
    with full_disk(path):
        monitor.log(1, {"loss": 0.25}, duration=1.0)
        monitor._journal.flush()
        monitor.log(2, {"loss": 0.125}, duration=1.0)
        monitor._journal.flush()
        before = [entry.id for entry in read(monitor.run_dir)]
        assert path.read_bytes().endswith(b"\n")
    assert [entry.event.kind for entry in heard] == ["epoch", "alert", "epoch"]
    assert [entry.id for entry in heard] == [before[-1] + 1, before[-1] + 2, before[-1] + 3]
    assert [event.kind for event in shown] == ["epoch", "alert", "epoch"]
    assert "cannot be written: File too large" in shown[1].data["message"]
    monkeypatch.setattr(store, "_RETRY_S", 0.0)
    monitor.log(3, {"loss": 0.1}, duration=1.0)
    monitor.finish()
    ids = [entry.id for entry in read(monitor.run_dir)]
    assert ids == list(range(1, len(ids) + 1))
    assert "is written again; nothing is missing" in alerts(read(monitor.run_dir))[-1]


def test_page_and_exports_have_everything_while_the_disk_is_full(tmp_path, monitor):
    import http.client

    monitor.serve(port=0)
    with full_disk(monitor.run_dir / FILE):
        for epoch in (1, 2):
            monitor.log_step(epoch, {"loss": 0.5})
            monitor.log(epoch, {"loss": 0.25}, duration=1.0)
            monitor._journal.flush()
        monitor.finish()
        connection = http.client.HTTPConnection("127.0.0.1", monitor._server.port, timeout=10)
        connection.request("GET", "/api/state")
        state = json.load(connection.getresponse())
        connection.close()
    assert state["status"]["state"] == "finished"
    assert [record["epoch"] for record in state["history"]] == [1, 2, 3]
    assert state["metrics"]["loss"]["x"] == [1, 2]
    assert [entry.event.data["epoch"] for entry in read(monitor.run_dir) if entry.event.kind == "epoch"] == [
        0
    ]
    rows = monitor.export_csv(tmp_path / "run.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == ["1", "2", "3"]
    assert len(monitor.write_log(tmp_path / "run.log").read_text().splitlines()) == 5
    assert monitor.save_html(tmp_path / "run.html").stat().st_size > 10_000


def test_a_full_disk_for_the_archive_does_not_fail_the_run(tmp_path, monitor, capsys):
    monitor.save_html(tmp_path / "run.html")
    (tmp_path / "run.html").unlink()
    (tmp_path / "run.html").mkdir()
    monitor.finish()
    assert "is not up to date: Is a directory" in capsys.readouterr().err


def test_a_deleted_folder_is_saved_elsewhere_whole(tmp_path, monitor):
    shutil.rmtree(monitor.run_dir)
    monitor.log(1, {"loss": 0.25}, duration=1.0)
    monitor.finish()
    assert not monitor.run_dir.exists()
    rescued = monitor._journal.reader().path.parent
    assert [entry.id for entry in read(rescued)] == list(range(1, 7))
    assert f"was deleted: the whole journal goes on in {rescued}" in alerts(read(rescued))[0]
    rows = monitor.export_csv(tmp_path / "run.csv").read_text().splitlines()
    assert len(rows) == 3
    shutil.rmtree(rescued)


def test_an_index_that_is_deleted_is_made_again(tmp_path, monitor):
    shutil.rmtree(monitor.run_dir / FOLDER)
    monitor.log_step(1, {"loss": 0.5})
    monitor._journal.flush()
    assert (monitor.run_dir / FOLDER).is_dir()
    monitor.log_step(2, {"loss": 0.5})
    (table,) = monitor._journal.reader().tables("metrics")
    assert table.rows[:, 3].tolist() == [1.0, 2.0]


def test_memory_is_bounded_and_what_is_rare_stays(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(store, "_MOST_HELD", 100)
    (tmp_path / FILE).write_bytes(b"x" * 2_000_000 + b"\n")
    with Journal.open(tmp_path) as journal, full_disk(tmp_path / FILE):
        for number in range(1000):
            journal.write(step(number))
            if number % 100 == 0:
                journal.write(Event("epoch", {"epoch": number, "metrics": {}}))
                journal.flush()
        reader = journal.reader()
        assert len(reader.entries({"epoch"})) == 10
        assert len(journal._store.held) <= 150
        journal.close()
    assert "lacks its last" in capsys.readouterr().err
