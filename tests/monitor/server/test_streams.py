"""Event streams: every client receives every event once, and slow clients affect nobody else."""

import http.client
import math
import shutil
import socket
import threading
import time

import pytest

from flodl.monitor import Event, Monitor
from flodl.monitor.journal import Entry
from flodl.monitor.server import FollowedRuns, Server, sse, subscribers


def log_epochs(monitor, count):
    for epoch in range(count):
        monitor.log(epoch, {"loss": 1.0}, duration=1.0)


def test_a_late_client_receives_every_past_epoch_once_and_then_follows(monitor, client):
    log_epochs(monitor, 3)
    stream = client.stream()
    monitor.log(3, {"loss": 1.0}, duration=1.0)
    monitor.finish()
    messages = stream.until("complete")
    assert [data["epoch"] for _, name, data in messages if name == "epoch"] == [1, 2, 3, 4]
    ids = [number for number, name, _ in messages if name != "complete"]
    assert ids == sorted(set(ids))


def test_clients_that_join_during_a_burst_receive_every_event_exactly_once(monitor, client):
    stop = threading.Event()

    def log_continuously():
        epoch = 0
        while not stop.is_set():
            monitor.log(epoch, {"loss": 1.0}, duration=1.0)
            epoch += 1
            time.sleep(0.002)

    thread = threading.Thread(target=log_continuously)
    thread.start()
    streams = []
    for _ in range(5):
        streams.append(client.stream())
        time.sleep(0.03)
    stop.set()
    thread.join()
    monitor.finish()
    last = monitor.history[-1]["epoch"]
    for stream in streams:
        assert stream.epochs_until("complete") == list(range(1, last + 1))


@pytest.mark.parametrize("path", ["/events?after=1", "/events", "/api/state", "/api/status", "/api/points"])
def test_requests_right_after_the_run_folder_was_deleted_get_the_rescued_journal(monitor, client, path):
    log_epochs(monitor, 2)
    monitor._journal.flush()
    shutil.rmtree(monitor.run_dir)
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=60)
    connection.request("GET", path)
    assert connection.getresponse().status == 200
    connection.close()
    assert [record["epoch"] for record in client.json("/api/history")] == [1, 2]
    shutil.rmtree(monitor._journal.reader().path.parent)


def test_a_stream_of_a_deleted_run_of_another_process_is_an_error_not_an_empty_response(tmp_path):
    with Monitor(1, tmp_path / "run") as written:
        log_epochs(written, 1)
    with Server(FollowedRuns([tmp_path / "run"]).runs, port=0) as server:
        shutil.rmtree(tmp_path / "run")
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("GET", "/events")
        response = connection.getresponse()
        assert response.status == 500
        assert b"The journal cannot be read." in response.read()
        connection.close()


def test_a_client_that_reconnects_receives_exactly_the_rest(monitor, client):
    log_epochs(monitor, 3)
    client.json("/api/state")
    first = client.stream()
    seen = first.until("epoch")
    first.close()
    rest = client.stream(**{"Last-Event-ID": str(seen[-1][0])})
    monitor.finish()
    assert rest.epochs_until("complete") == [2, 3]


def test_the_last_event_id_header_takes_precedence_over_the_query(monitor, client):
    log_epochs(monitor, 3)
    last = client.json("/api/state")["last_id"]
    stream = client.stream(f"/events?after={last - 2}", **{"Last-Event-ID": str(last - 1)})
    assert stream.epochs_until("epoch") == [3]


def test_a_client_that_was_away_too_long_is_reset(monitor, client, monkeypatch):
    monkeypatch.setattr(subscribers, "_MAX_RECENT", 10)
    log_epochs(monitor, 50)
    client.json("/api/state")
    ((number, name, _),) = client.stream(**{"Last-Event-ID": "2"}).until("reset")
    assert (name, number) == ("reset", monitor._journal.last_id)


def test_a_client_that_followed_a_different_run_is_reset(monitor, client):
    log_epochs(monitor, 3)
    state = client.json("/api/state")
    assert client.stream(f"/events?after=1&server={state['server']}").epochs_until("epoch") == [1]
    ahead = client.stream(**{"Last-Event-ID": str(state["last_id"] + 50)})
    different = client.stream("/events?after=1&server=different")
    for stream in (ahead, different):
        ((number, _, _),) = stream.until("reset")
        assert number == state["last_id"]


def test_a_client_that_connects_after_the_end_receives_the_end(monitor, client):
    monitor.log(0, {"loss": 1.0}, duration=1.0)
    monitor.finish()
    messages = client.stream().until("complete")
    assert [data["epoch"] for _, name, data in messages if name == "epoch"] == [1]
    last = messages[-1][0]
    assert client.stream(**{"Last-Event-ID": str(last)}).until("complete")


def test_a_client_can_poll_for_the_messages_after_a_number(monitor, client):
    monitor.log(0, {"loss": 0.5}, duration=1.0)
    monitor._journal.flush()
    monitor._page._server.flush()
    status, _, body = client.get("/events?after=1&once=1")
    assert status == 200
    assert b"event: epoch" in body
    assert b"event:" not in client.get(f"/events?after={monitor._journal.last_id}&once=1")[2]
    assert len(monitor._page._server._subscribers) == 0


def test_a_browser_can_hold_four_streams_and_gets_another_when_one_ends(monitor, client):
    streams = [client.stream("/events?browser=b") for _ in range(4)]
    assert client.get("/events?browser=b")[0] == 204
    assert client.get("/events?after=0&once=1")[0] == 200
    client.stream("/events?browser=another").close()
    client.stream().close()
    streams[0].close()
    while client.get("/events?browser=b&once=1")[0] == 204:
        time.sleep(0.01)  # until the server notices
    for stream in streams[1:]:
        stream.close()


def test_points_are_merged_into_ticks_that_keep_the_extremes(monitor, client):
    stream = client.stream(f"/events?after={client.json('/api/state')['last_id']}")
    for step in range(5000):
        monitor.log_step(step, {"loss": 9.0 if step == 2500 else 1.0})
    monitor.finish()
    points = [data["points"]["loss"] for _, name, data in stream.until("complete") if name == "tick"]
    assert max(value for line in points for value in line["y"]) == 9.0
    assert points[-1]["x"][-1] >= 4000
    assert sum(len(line["x"]) for line in points) < 2000


def test_a_nan_among_many_steps_of_one_tick_is_kept(monitor, client):
    stream = client.stream()
    for step in range(500):
        monitor.log_step(step, {"loss": math.nan if step == 333 else 1.0})
    monitor.finish()
    points = [data["points"]["loss"] for _, name, data in stream.until("complete") if name == "tick"]
    seen = [line["x"][index] for line in points for index in line.get("not_finite", {}).get("nan", ())]
    assert seen == [333]


@pytest.mark.slow
def test_a_stalled_client_uses_bounded_memory_and_is_reset_when_it_reads(monitor, client, monkeypatch):
    monkeypatch.setattr(subscribers, "MAX_UNREAD_BYTES", 4096)
    stalled = socket.socket()
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stalled.connect(("127.0.0.1", client.port))
    stalled.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    reader = stalled.makefile("rb")
    reader.readline()
    members = monitor._page._server._subscribers._subscribers
    text = "x" * 2000
    deadline = time.monotonic() + 30
    while not (members and members[0].is_skipped):
        monitor.alert(text)
        monitor._journal.flush()
        assert time.monotonic() < deadline
    for _ in range(200):
        monitor.alert(text)
    monitor._journal.flush()
    assert members[0].unread_bytes < 512 * 1024
    while b"event: reset" not in reader.readline():
        monitor.alert("one more")
        monitor._journal.flush()
        assert time.monotonic() < deadline
    stalled.close()


def test_a_stream_of_one_rank_contains_only_that_rank(monitor, client):
    after = client.json("/api/state")["last_id"]
    stream = client.stream(f"/events?after={after}&rank=1")
    for rank in (0, 1):
        monitor.emit(Event("metrics", {"step": 0, "metrics": {"loss": float(rank)}}, rank=rank))
    assert stream.until("tick")[-1][2]["points"]["loss"]["y"] == [1.0]
    assert client.json("/api/metrics?rank=1")["loss"]["y"] == [1.0]
    assert [rank["rank"] for rank in client.json("/api/ranks")] == [0, 1]


def test_a_run_of_another_process_is_followed_while_it_is_written(tmp_path, connect):
    with Monitor(5, tmp_path, console=False, resources=False, step_rate=None) as monitor:
        monitor.log(0, {"loss": 1.0}, duration=1.0)
        monitor._journal.flush()
        followed = FollowedRuns([tmp_path])
        with Server(followed.runs, last_id=followed.last_id, poll=followed.poll, port=0) as server:
            client = connect(server.url)
            stream = client.stream()
            assert client.json("/api/status")["state"] == "running"
            monitor.log(1, {"loss": 0.5}, duration=1.0)
            monitor.finish()
            assert stream.epochs_until("complete") == [1, 2]


def test_a_message_has_one_line_of_data_whatever_it_contains():
    text = sse.message("told", {"message": "a\nb\r\n\ndata: c"}, 7)
    assert text.count(b"\n") == 4
    assert b"\r" not in text


def test_each_message_carries_the_number_of_its_last_entry():
    entries = [
        Entry(1, Event("metrics", {"step": 0, "metrics": {"loss": 1.0}})),
        Entry(2, Event("metrics", {"step": 1, "metrics": {"loss": 2.0}})),
        Entry(3, Event("epoch", {"epoch": 0, "metrics": {}})),
        Entry(4, Event("progress", {"epoch": 1, "step": 1})),
    ]
    text = sse.frame(entries, rank=0, total_epochs=3).decode()
    assert [line for line in text.splitlines() if line.startswith(("id", "event"))] == [
        "id: 2",
        "event: tick",
        "id: 3",
        "event: epoch",
        "id: 4",
        "event: tick",
    ]
