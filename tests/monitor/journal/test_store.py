"""A full disk and a deleted folder: the run continues, and so does everything that shows it."""

import contextlib
import http.client
import json
import resource
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from flodl.monitor import Event, Journal, Monitor, read
from flodl.monitor.journal import FILE, store
from flodl.monitor.journal.index import FOLDER


def step(number):
    return Event("metrics", {"step": number, "metrics": {"loss": float(number)}}, time_s=float(number))


@contextlib.contextmanager
def full_disk(path: Path):
    """Prevent files from growing beyond the current size of the journal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 40, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def monitor(tmp_path):
    created = Monitor(5, tmp_path / "run", console=False, resources=False, step_rate=None)
    created.emit(
        Event("alert", {"message": "x" * 2_000_000})
    )  # so that the other files of a test stay smaller
    created.log(0, {"loss": 0.5}, duration=1.0)
    created._journal.flush()
    yield created
    created.close()


def alerts(run):
    return [entry.event.data["message"] for entry in run if entry.event.kind == "alert"][1:]


def test_events_that_do_not_fit_on_a_full_disk_are_shown_and_written_later(tmp_path, monitor, monkeypatch):
    received, shown = [], []
    monitor._journal.subscribe(received.extend)
    monitor._views._views.append(shown.append)
    path = monitor.run_dir / FILE
    with full_disk(path):
        monitor.log(1, {"loss": 0.25}, duration=1.0)
        monitor._journal.flush()
        monitor.log(2, {"loss": 0.125}, duration=1.0)
        monitor._journal.flush()
        before = [entry.id for entry in read(monitor.run_dir)]
        assert path.read_bytes().endswith(b"\n")
    assert [entry.event.kind for entry in received] == ["epoch", "alert", "epoch"]
    assert [entry.id for entry in received] == [before[-1] + 1, before[-1] + 2, before[-1] + 3]
    assert [event.kind for event in shown] == ["epoch", "alert", "epoch"]
    assert "cannot write the journal in" in shown[1].data["message"]
    assert ": File too large. Events are kept in memory" in shown[1].data["message"]
    monkeypatch.setattr(store, "_RETRY_S", 0.0)
    monitor.log(3, {"loss": 0.1}, duration=1.0)
    monitor.finish()
    ids = [entry.id for entry in read(monitor.run_dir)]
    assert ids == list(range(1, len(ids) + 1))
    assert "is writable again; nothing is missing" in alerts(read(monitor.run_dir))[-1]


def test_page_and_exports_are_complete_while_the_disk_is_full(tmp_path, monitor):
    monitor.serve(port=0)
    with full_disk(monitor.run_dir / FILE):
        for epoch in (1, 2):
            monitor.log_step(epoch, {"loss": 0.5})
            monitor.log(epoch, {"loss": 0.25}, duration=1.0)
            monitor._journal.flush()
        monitor.finish()
        connection = http.client.HTTPConnection("127.0.0.1", urlsplit(monitor.url).port, timeout=10)
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


def test_a_failing_archive_does_not_fail_the_run(tmp_path, monitor, capsys):
    monitor.save_html(tmp_path / "run.html")
    (tmp_path / "run.html").unlink()
    (tmp_path / "run.html").mkdir()
    monitor.finish()
    assert "page is not up to date: cannot write" in capsys.readouterr().err


def test_a_deleted_journal_is_recovered_completely(tmp_path, monitor):
    shutil.rmtree(monitor.run_dir)
    monitor.log(1, {"loss": 0.25}, duration=1.0)
    monitor.finish()
    assert not monitor.run_dir.exists()
    rescued = monitor._journal.reader().path.parent
    assert [entry.id for entry in read(rescued)] == list(range(1, 7))
    assert f"was deleted. The complete journal continues in {rescued}" in alerts(read(rescued))[0]
    rows = monitor.export_csv(tmp_path / "run.csv").read_text().splitlines()
    assert len(rows) == 3
    shutil.rmtree(rescued)


def test_a_deleted_index_is_rebuilt(tmp_path, monitor):
    shutil.rmtree(monitor.run_dir / FOLDER)
    monitor.log_step(1, {"loss": 0.5})
    monitor._journal.flush()
    assert (monitor.run_dir / FOLDER).is_dir()
    monitor.log_step(2, {"loss": 0.5})
    (table,) = monitor._journal.reader().tables("metrics")
    assert table.rows[:, 3].tolist() == [1.0, 2.0]


def test_memory_is_bounded_and_rare_events_are_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(store, "_MAX_PENDING", 100)
    (tmp_path / FILE).write_bytes(b"x" * 2_000_000 + b"\n")
    with Journal.open(tmp_path) as journal, full_disk(tmp_path / FILE):
        for number in range(1000):
            journal.write(step(number))
            if number % 100 == 0:
                journal.write(Event("epoch", {"epoch": number, "metrics": {}}))
                journal.flush()
        reader = journal.reader()
        assert len(reader.entries({"epoch"})) == 10
        assert len(journal._store.pending) <= 150
        journal.close()
    assert "is missing its last" in capsys.readouterr().err


def test_a_folder_that_is_renamed_during_the_run_is_not_created_again(tmp_path):
    folder = tmp_path / "run"
    with Journal.open(folder) as journal:
        for number in range(3):
            journal.write(Event("alert", {"message": str(number)}))
            journal.flush()
            if number == 0:
                folder.rename(tmp_path / "renamed")
    assert [path.name for path in tmp_path.iterdir()] == ["renamed"]
    assert [entry.event.data["message"] for entry in read(tmp_path / "renamed")] == ["0", "1", "2"]
