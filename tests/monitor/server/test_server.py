"""The server of the live page: every event once, nobody waits, nobody else gets in."""

import http.client
import json
import math
import socket
import threading
import time
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from flodl.core import MonitorError
from flodl.monitor import Event, Monitor
from flodl.monitor.journal import Entry
from flodl.monitor.server import FollowedRuns, Server, sse, subscribers
from flodl.monitor.server.http import parse


@pytest.fixture
def monitor(tmp_path, monkeypatch):
    monkeypatch.setattr("flodl.monitor.live_page._LINGER_S", 600.0)  # the page stays until the test is over
    made = Monitor(5, tmp_path / "run", console=False, resources=False, step_rate=None)
    made.serve(port=0)
    yield made
    made.close()


def port_of(monitor):
    return urlsplit(monitor.url).port


def ask(monitor, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port_of(monitor), timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def data_of(monitor, path):
    status, _, body = ask(monitor, path)
    assert status == 200, body
    return json.loads(body)


class Stream:
    """An open stream of events, read message by message."""

    def __init__(self, monitor, path="/events", **headers):
        self.connection = http.client.HTTPConnection("127.0.0.1", port_of(monitor), timeout=60)
        self.connection.request("GET", path, headers=headers)
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200

    def until(self, name):
        """Give the messages as (id, name, data), up to and with the first of a name."""
        found, message = [], {}
        while not found or found[-1][1] != name:
            line = self.answer.readline().decode().rstrip("\n")
            assert self.answer.fp is not None, found
            if line:
                key, _, value = line.partition(": ")
                message[key] = value
            elif "event" in message:
                found.append((int(message["id"]), message["event"], json.loads(message["data"])))
                message = {}
            else:
                message = {}
        return found

    def close(self):
        self.answer.close()  # it holds the connection open by itself
        self.connection.close()


def epochs(messages):
    return [data["epoch"] for _, name, data in messages if name == "epoch"]


def test_what_was_logged_is_there_at_once(monitor):
    monitor.log(0, {"loss": 0.5}, duration=1.0)
    (record,) = data_of(monitor, "/api/history")
    assert (record["epoch"], record["total"], record["metrics"]) == (1, 5, {"loss": 0.5})


def test_every_panel_has_a_twin_in_json(monitor):
    monitor.log_step(0, {"loss": 1.0}, epoch=0)
    monitor.log_step(1, {"loss": float("nan")}, epoch=0)
    monitor.progress(0, 2, 2)
    monitor.alert("hot")
    state = data_of(monitor, "/api/state")
    for name in ("status", "metrics", "resources", "progress", "config", "graph", "events", "ranks"):
        assert data_of(monitor, f"/api/{name}") == state[name] or name == "status"
    assert state["metrics"]["loss"] == {"x": [0, 1], "y": [1.0, None], "not_finite": {"nan": [1]}}
    assert state["status"]["state"] == "running"
    assert data_of(monitor, "/api/points?from=1&to=1")["loss"]["x"] == [0, 1]
    assert len(data_of(monitor, "/api/runs")) == 1


def test_a_number_that_is_not_finite_is_null_and_its_name_stands_beside(monitor):
    values = {"loss": math.nan, "gain": math.inf, "low": -math.inf, "accuracy": 0.5}
    numbers = {"loss": None, "gain": None, "low": None, "accuracy": 0.5}
    names = {"loss": "nan", "gain": "inf", "low": "-inf"}
    stream = Stream(monitor)
    monitor.log_step(0, values, epoch=0)
    monitor.log(0, values, duration=1.0)
    for address in ("/api/history", "/api/ranks"):
        (record,) = data_of(monitor, address)
        assert (record["metrics"], record["not_finite"]) == (numbers, names)
    for address in ("/api/metrics", "/api/points?from=0&to=1"):
        assert data_of(monitor, address)["gain"] == {"x": [0], "y": [None], "not_finite": {"inf": [0]}}
    told = stream.until("epoch")[-1][2]
    assert (told["metrics"], told["not_finite"]) == (numbers, names)
    assert math.isnan(monitor.history[0]["metrics"]["loss"])


def test_a_nan_among_many_steps_of_one_message_is_told(monitor):
    stream = Stream(monitor)
    for step in range(500):
        monitor.log_step(step, {"loss": math.nan if step == 333 else 1.0})
    monitor.finish()
    points = [data["points"]["loss"] for _, name, data in stream.until("complete") if name == "tick"]
    seen = [line["x"][at] for line in points for at in line.get("not_finite", {}).get("nan", ())]
    assert seen == [333]


def test_metrics_may_be_named_like_the_place_they_belong_to(monitor):
    monitor.progress(3, 5, 10)
    monitor.log_step(35, {"epoch": 7.0, "step": 8.0, "id": 9.0})
    (rank,) = data_of(monitor, "/api/ranks")
    assert rank["metrics"] == {"epoch": 7.0, "step": 8.0, "id": 9.0}
    assert (rank["epoch"], rank["global_step"]) == (3, 35)


def test_places_are_whole_numbers_and_a_step_fits_the_number_of_steps_beside_it(monitor):
    monitor.progress(2, 5, 40)
    monitor.log_step(85, {"loss": 1.0}, epoch=2)
    progress, (rank,) = data_of(monitor, "/api/progress"), data_of(monitor, "/api/ranks")
    for place in (progress, rank):
        assert [repr(place[name]) for name in ("epoch", "step", "num_steps")] == ["2", "5", "40"]
    assert repr(rank["global_step"]) == "85"


def test_one_browser_holds_four_streams_and_gets_another_when_one_ends(monitor):
    streams = [Stream(monitor, "/events?browser=b") for _ in range(4)]
    assert ask(monitor, "/events?browser=b")[0] == 204
    assert ask(monitor, "/events?after=0&once=1")[0] == 200
    Stream(monitor, "/events?browser=another").close()
    Stream(monitor).close()
    streams[0].close()
    while ask(monitor, "/events?browser=b&once=1")[0] == 204:
        time.sleep(0.01)  # the server notices soon
    for stream in streams[1:]:
        stream.close()


def test_a_late_reader_gets_every_past_epoch_once_and_then_follows(monitor):
    for epoch in range(3):
        monitor.log(epoch, {"loss": 1.0}, duration=1.0)
    stream = Stream(monitor)
    monitor.log(3, {"loss": 1.0}, duration=1.0)
    monitor.finish()
    messages = stream.until("complete")
    assert epochs(messages) == [1, 2, 3, 4]
    ids = [number for number, name, _ in messages if name != "complete"]
    assert ids == sorted(set(ids))


def test_readers_who_join_while_events_rain_miss_none_and_get_none_twice(monitor):
    stop = threading.Event()

    def rain():
        epoch = 0
        while not stop.is_set():
            monitor.log(epoch, {"loss": 1.0}, duration=1.0)
            epoch += 1
            time.sleep(0.002)

    thread = threading.Thread(target=rain)
    thread.start()
    streams = []
    for _ in range(5):
        streams.append(Stream(monitor))
        time.sleep(0.03)
    stop.set()
    thread.join()
    monitor.finish()
    last = monitor.history[-1]["epoch"]
    for stream in streams:
        assert epochs(stream.until("complete")) == list(range(1, last + 1))


def test_a_reader_that_comes_back_gets_exactly_the_rest(monitor):
    for epoch in range(3):
        monitor.log(epoch, {"loss": 1.0}, duration=1.0)
    data_of(monitor, "/api/state")
    first = Stream(monitor)
    seen = first.until("epoch")
    first.close()
    rest = Stream(monitor, **{"Last-Event-ID": str(seen[-1][0])})
    monitor.finish()
    assert epochs(rest.until("complete")) == [2, 3]


def test_a_reader_may_give_the_number_in_the_address_and_its_header_wins(monitor):
    for epoch in range(3):
        monitor.log(epoch, {"loss": 1.0}, duration=1.0)
    last = data_of(monitor, "/api/state")["last_id"]
    stream = Stream(monitor, f"/events?after={last - 2}", **{"Last-Event-ID": str(last - 1)})
    assert epochs(stream.until("epoch")) == [3]


def test_a_reader_who_was_away_too_long_is_told_to_read_anew(monitor, monkeypatch):
    monkeypatch.setattr(subscribers, "_MOST_RECENT", 10)
    for epoch in range(50):
        monitor.log(epoch, {"loss": 1.0}, duration=1.0)
    data_of(monitor, "/api/state")
    ((number, name, _),) = Stream(monitor, **{"Last-Event-ID": "2"}).until("reset")
    assert (name, number) == ("reset", monitor._journal.last_id)


def test_a_reader_who_saw_another_run_is_told_to_read_anew(monitor):
    for epoch in range(3):
        monitor.log(epoch, {"loss": 1.0}, duration=1.0)
    state = data_of(monitor, "/api/state")
    same = f"/events?after=1&server={state['server']}"
    assert epochs(Stream(monitor, same).until("epoch")) == [1]
    ahead = Stream(monitor, **{"Last-Event-ID": str(state["last_id"] + 50)})
    another = Stream(monitor, "/events?after=1&server=another")
    for stream in (ahead, another):
        ((number, _, _),) = stream.until("reset")
        assert number == state["last_id"]


def test_a_refusal_says_which_number_is_wrong_and_what_there_is(monitor):
    assert ask(monitor, "/api/points?from=200&to=100")[2] == (
        b"from=200 lies after to=100: give the lower one first.\n"
    )
    assert b"to=nan is not usable" in ask(monitor, "/api/points?to=nan")[2]
    assert b"after=x is not usable" in ask(monitor, "/events?after=x")[2]
    assert b"No rank 7 has told anything; these have: [0]" in ask(monitor, "/api/state?rank=7")[2]
    assert b"/api/state|points|" in ask(monitor, "/nothing")[2]


def test_runs_in_folders_of_the_same_name_have_as_much_of_their_paths_as_tells_them_apart(tmp_path):
    folders = [tmp_path / group / "s0" for group in ("gA", "gB")]
    for folder in folders:
        Monitor(1, folder, console=False, resources=False).close()

    with Server(FollowedRuns(folders).runs, port=0) as server:
        assert [data_of(server, f"/api/state?run={at}")["folder"] for at in (0, 1)] == ["gA/s0", "gB/s0"]


def test_those_who_come_after_the_end_are_told(monitor):
    monitor.log(0, {"loss": 1.0}, duration=1.0)
    monitor.finish()
    messages = Stream(monitor).until("complete")
    assert epochs(messages) == [1]
    last = messages[-1][0]
    assert Stream(monitor, **{"Last-Event-ID": str(last)}).until("complete")


def test_the_listener_is_closed_with_the_run(monitor):
    port = port_of(monitor)
    monitor.close()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=60):
        pass


def test_points_are_merged_into_ticks_with_their_extremes(monitor):
    stream = Stream(monitor, f"/events?after={data_of(monitor, '/api/state')['last_id']}")
    for step in range(5000):
        monitor.log_step(step, {"loss": 9.0 if step == 2500 else 1.0})
    monitor.finish()
    points = [data["points"]["loss"] for _, name, data in stream.until("complete") if name == "tick"]
    assert max(value for line in points for value in line["y"]) == 9.0
    assert points[-1]["x"][-1] >= 4000
    assert sum(len(line["x"]) for line in points) < 2000


def test_a_stalled_reader_costs_no_memory_and_reads_anew_later(monitor, monkeypatch):
    monkeypatch.setattr(subscribers, "MOST_WAITING_BYTES", 4096)
    stalled = socket.socket()
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stalled.connect(("127.0.0.1", port_of(monitor)))
    stalled.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    reader = stalled.makefile("rb")
    reader.readline()
    members = monitor._page._server._audience._watchers
    text = "x" * 2000
    deadline = time.monotonic() + 30
    while not (members and members[0].missed):
        monitor.alert(text)
        monitor._journal.flush()
        assert time.monotonic() < deadline
    for _ in range(200):
        monitor.alert(text)
    monitor._journal.flush()
    assert members[0].waiting_bytes < 512 * 1024
    while b"event: reset" not in reader.readline():
        monitor.alert("and on")
        monitor._journal.flush()
        assert time.monotonic() < deadline
    stalled.close()


def test_a_page_of_one_rank_hears_of_that_rank_alone(monitor):
    after = data_of(monitor, "/api/state")["last_id"]
    stream = Stream(monitor, f"/events?after={after}&rank=1")
    for rank in (0, 1):
        data = {"step": 0, "metrics": {"loss": float(rank)}}
        monitor.emit(Event("metrics", data, rank=rank))
    assert stream.until("tick")[-1][2]["points"]["loss"]["y"] == [1.0]
    assert data_of(monitor, "/api/metrics?rank=1")["loss"]["y"] == [1.0]
    assert [rank["rank"] for rank in data_of(monitor, "/api/ranks")] == [0, 1]


def test_a_port_that_is_taken_is_passed_over_and_told(monitor, tmp_path, capsys):
    with Monitor(1, tmp_path / "other", console=False, resources=False, step_rate=None) as other:
        other.serve(port=port_of(monitor))
        assert port_of(other) > port_of(monitor)
        assert f"(port {port_of(monitor)} is in use)" in capsys.readouterr().out
        other.close()


def test_serving_twice_gives_the_same_page_and_after_the_end_none(monitor):
    assert monitor.serve() == monitor.url
    with pytest.raises(MonitorError, match=r"the page is already served at http://127.0.0.1:\d+/\."):
        monitor.serve(3000, token="a secret")
    monitor.finish()
    with pytest.raises(
        MonitorError, match=r"the run has finished, and its live page is closed. `fdl monitor"
    ):
        monitor.serve()


def test_a_page_that_is_closed_has_no_address(monitor):
    monitor.close()
    assert monitor.url is None
    monitor.close()


def test_an_address_of_another_machine_is_refused(tmp_path):
    monitor = Monitor(1, tmp_path, console=False, resources=False)
    with monitor, pytest.raises(MonitorError, match=r"cannot be served at '203.0.113.1'"):
        monitor.serve(port=0, host="203.0.113.1")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:3000", "localhost.evil.example", ""])
def test_a_name_that_only_points_here_is_refused(monitor, host):
    assert ask(monitor, "/api/state", Host=host)[0] == 403
    assert ask(monitor, "/events", Host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:9", "run.localhost"])
def test_names_of_this_machine_are_taken_with_any_port(monitor, host):
    assert ask(monitor, "/api/status", Host=host)[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/", 405),
        ("GET", "/nothing", 404),
        ("GET", "/api/nothing", 404),
        ("GET", "/graph.svg", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/api/state?run=7", 400),
        ("GET", "/api/state?run=-1", 400),
        ("GET", "/api/state?rank=x", 400),
        ("GET", "/api/state?rank=7", 404),
        ("GET", "/api/state?server=another", 409),
        ("GET", "/api/points?from=x", 400),
        ("GET", "/api/points?from=200&to=100", 400),
        ("GET", "/api/points?to=nan", 400),
        ("GET", "/api/points?most=many", 400),
        ("GET", "/events?after=x", 400),
        ("GET", "/events?rank=x", 400),
        ("HEAD", "/", 200),
        ("GET", "/?any=thing", 200),
    ],
)
def test_other_requests_get_an_answer_that_fits(monitor, method, path, status):
    answered, headers, body = ask(monitor, path, method=method)
    assert answered == status
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in headers
    assert (body == b"") == (method == "HEAD")


@pytest.mark.parametrize(
    "text", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 9000, b"\x00\r\n\r\n"]
)
def test_what_is_no_request_does_not_disturb_the_others(monitor, text):
    with socket.create_connection(("127.0.0.1", port_of(monitor)), timeout=60) as raw:
        raw.sendall(text)
    assert ask(monitor, "/api/status")[0] == 200


def test_a_token_is_asked_for_and_moves_from_the_address_to_a_cookie(tmp_path):
    with Monitor(1, tmp_path, console=False, resources=False, step_rate=None) as monitor:
        address = monitor.serve(port=0, token="secret")
        assert address.endswith("/t/secret/")
        assert ask(monitor, "/")[0] == 401
        assert ask(monitor, "/events")[0] == 401
        assert ask(monitor, "/?token=wrong")[0] == 401
        status, headers, _ = ask(monitor, "/?token=secret", Accept="text/html")
        assert (status, headers["Location"]) == (303, "/")
        assert "HttpOnly; SameSite=Strict" in headers["Set-Cookie"]
        cookie = headers["Set-Cookie"].partition(";")[0]
        assert ask(monitor, "/", Cookie=cookie)[0] == 200
        assert ask(monitor, "/api/state", Authorization="Bearer secret")[0] == 200
        monitor.close()


def test_a_reader_may_ask_once_for_what_came_after_a_number(monitor):
    monitor.log(0, {"loss": 0.5}, duration=1.0)
    monitor._journal.flush()
    monitor._page._server.settle()
    status, _, body = ask(monitor, "/events?after=1&once=1")
    assert status == 200
    assert b"event: epoch" in body
    assert b"event:" not in ask(monitor, f"/events?after={monitor._journal.last_id}&once=1")[2]
    assert len(monitor._page._server._audience) == 0


@pytest.mark.parametrize("token", ["a b&c=d#e/f?", "größe;x", "100%"])
def test_any_token_gives_an_address_that_opens_and_that_paths_can_follow(tmp_path, token):
    with Monitor(1, tmp_path, console=False, resources=False, step_rate=None) as monitor:
        address = monitor.serve(port=0, token=token)
        monitor.log(0, {"loss": 0.5}, duration=1.0)
        with urlopen(address + "api/history") as answer:
            assert json.load(answer)[0]["metrics"] == {"loss": 0.5}
        path = "/" + address.split("/", 3)[3]
        status, headers, _ = ask(monitor, path.removesuffix("/"))
        assert (status, headers["Location"]) == (303, path)
        assert ask(monitor, path)[0] == 200  # as a tool asks, that keeps no cookie
        status, headers, _ = ask(monitor, path, Accept="text/html,*/*;q=0.8")
        assert (status, headers["Location"]) == (303, "/")
        cookie = headers["Set-Cookie"].partition(";")[0]
        assert ask(monitor, "/api/state", Cookie=cookie)[0] == 200
        bearer = f"Bearer {token}".encode().decode("latin-1")
        assert ask(monitor, "/api/state", Authorization=bearer)[0] == 200
        monitor.close()


def test_a_page_for_other_machines_has_a_token_of_its_own(tmp_path):
    with Monitor(1, tmp_path, console=False, resources=False, step_rate=None) as monitor:
        address = monitor.serve(port=0, host="0.0.0.0")
        token = address.partition("/t/")[2].rstrip("/")
        assert len(token) > 16
        assert ask(monitor, "/api/state")[0] == 401
        assert ask(monitor, "/api/state", Host="gpu-box:1", Authorization=f"Bearer {token}")[0] == 200
        monitor.close()


def test_a_foreign_run_is_followed_while_another_writes_it(tmp_path):
    with Monitor(5, tmp_path, console=False, resources=False, step_rate=None) as monitor:
        monitor.log(0, {"loss": 1.0}, duration=1.0)
        monitor._journal.flush()
        followed = FollowedRuns([tmp_path])
        with Server(followed.runs, last_id=followed.last_id, news=followed.news, port=0) as server:
            stream = Stream(server)
            assert data_of(server, "/api/status")["state"] == "running"
            monitor.log(1, {"loss": 0.5}, duration=1.0)
            monitor.finish()
            assert epochs(stream.until("complete")) == [1, 2]


def test_a_message_is_one_line_of_data_whatever_it_holds():
    text = sse.message("told", {"message": "a\nb\r\n\ndata: c"}, 7)
    assert text.count(b"\n") == 4
    assert b"\r" not in text


def test_each_message_carries_the_number_up_to_which_it_tells():
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


@pytest.mark.parametrize(
    "text", [b"GET /\r\n\r\n", b"GET  HTTP/1.1\r\n\r\n", b"GET nothing HTTP/1.1\r\n\r\n"]
)
def test_half_a_request_is_none(text):
    assert parse(text) is None
