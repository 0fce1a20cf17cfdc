"""The server of the live page: its JSON API, its address, and who may access it."""

import json
import math
import socket
from urllib.request import urlopen

import pytest

from flodl.core import MonitorError
from flodl.monitor import Monitor
from flodl.monitor.server import FollowedRuns, Server
from flodl.monitor.server.http import parse


def test_a_logged_epoch_is_available_immediately(monitor, client):
    monitor.log(0, {"loss": 0.5}, duration=1.0)
    (record,) = client.json("/api/history")
    assert (record["epoch"], record["total"], record["metrics"]) == (1, 5, {"loss": 0.5})


def test_every_panel_has_a_json_endpoint(monitor, client):
    monitor.log_step(0, {"loss": 1.0}, epoch=0)
    monitor.log_step(1, {"loss": float("nan")}, epoch=0)
    monitor.progress(0, 2, 2)
    monitor.alert("hot")
    state = client.json("/api/state")
    for name in ("metrics", "resources", "progress", "config", "graph", "ranks"):
        assert client.json(f"/api/{name}") == state[name]
    assert client.json("/api/status").keys() == state["status"].keys()
    # A slow garbage collection may have added an event since.
    assert client.json("/api/events")[: len(state["events"])] == state["events"]
    assert state["metrics"]["loss"] == {"x": [0, 1], "y": [1.0, None], "not_finite": {"nan": [1]}}
    assert state["status"]["state"] == "running"
    assert client.json("/api/points?from=1&to=1")["loss"]["x"] == [0, 1]
    assert len(client.json("/api/runs")["runs"]) == 1


def test_a_number_that_is_not_finite_is_null_with_its_name_in_not_finite(monitor, client):
    values = {"loss": math.nan, "gain": math.inf, "low": -math.inf, "accuracy": 0.5}
    numbers = {"loss": None, "gain": None, "low": None, "accuracy": 0.5}
    names = {"loss": "nan", "gain": "inf", "low": "-inf"}
    stream = client.stream()
    monitor.log_step(0, values, epoch=0)
    monitor.log(0, values, duration=1.0)
    for path in ("/api/history", "/api/ranks"):
        (record,) = client.json(path)
        assert (record["metrics"], record["not_finite"]) == (numbers, names)
    for path in ("/api/metrics", "/api/points?from=0&to=1"):
        assert client.json(path)["gain"] == {"x": [0], "y": [None], "not_finite": {"inf": [0]}}
    epoch = stream.until("epoch")[-1][2]
    assert (epoch["metrics"], epoch["not_finite"]) == (numbers, names)
    assert math.isnan(monitor.history[0]["metrics"]["loss"])


def test_metrics_can_have_the_names_of_counters(monitor, client):
    monitor.progress(3, 5, 10)
    monitor.log_step(35, {"epoch": 7.0, "step": 8.0, "id": 9.0})
    (rank,) = client.json("/api/ranks")
    assert rank["metrics"] == {"epoch": 7.0, "step": 8.0, "id": 9.0}
    assert (rank["epoch"], rank["global_step"]) == (3, 35)


def test_counters_are_integers_and_the_step_is_relative_to_num_steps(monitor, client):
    monitor.progress(2, 5, 40)
    monitor.log_step(85, {"loss": 1.0}, epoch=2)
    progress, (rank,) = client.json("/api/progress"), client.json("/api/ranks")
    for record in (progress, rank):
        assert [repr(record[name]) for name in ("epoch", "step", "num_steps")] == ["2", "5", "40"]
    assert repr(rank["global_step"]) == "85"


def test_an_error_names_the_invalid_parameter_and_what_is_available(client):
    assert client.get("/api/points?from=200&to=100")[2] == (b"from=200 is greater than to=100. Swap them.\n")
    assert b"to=nan is invalid" in client.get("/api/points?to=nan")[2]
    assert b"after=x is invalid" in client.get("/events?after=x")[2]
    assert b"Rank 7 has recorded nothing. Ranks: [0]" in client.get("/api/state?rank=7")[2]
    assert b"/api/state|points|" in client.get("/nothing")[2]


def test_runs_in_folders_of_the_same_name_are_shown_with_more_of_their_paths(tmp_path, connect):
    folders = [tmp_path / group / "s0" for group in ("gA", "gB")]
    for folder in folders:
        Monitor(1, folder, console=False, resources=False).close()
    with Server(FollowedRuns(folders).runs, port=0) as server:
        client = connect(server.url)
        assert [client.json(f"/api/state?run={index}")["folder"] for index in (0, 1)] == ["gA/s0", "gB/s0"]


def test_the_socket_is_closed_with_the_run(monitor, client):
    monitor.close()
    with (
        pytest.raises(ConnectionRefusedError),
        socket.create_connection(("127.0.0.1", client.port), timeout=60),
    ):
        pass


def test_a_port_in_use_is_skipped_with_a_note(client, connect, tmp_path, capsys):
    with Monitor(1, tmp_path / "other", console=False, resources=False, step_rate=None) as other:
        other.serve(port=client.port)
        assert connect(other.url).port > client.port
        assert f"(port {client.port} is in use)" in capsys.readouterr().out
        other.close()


def test_serving_twice_returns_the_same_url_and_after_the_end_raises(monitor):
    assert monitor.serve() == monitor.url
    with pytest.raises(MonitorError, match=r"the page is already served at http://127.0.0.1:\d+/\."):
        monitor.serve(3000, token="a secret")
    monitor.finish()
    with pytest.raises(MonitorError, match=r"finished, and its live page is closed. `fdl monitor"):
        monitor.serve()


def test_a_closed_page_has_no_url(monitor):
    monitor.close()
    assert monitor.url is None
    monitor.close()


def test_an_address_of_another_machine_raises(tmp_path):
    monitor = Monitor(1, tmp_path, console=False, resources=False)
    with monitor, pytest.raises(MonitorError, match=r"cannot serve the page at '203.0.113.1'"):
        monitor.serve(port=0, host="203.0.113.1")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:3000", "localhost.evil.example", ""])
def test_a_foreign_host_header_is_rejected(client, host):
    assert client.get("/api/state", Host=host)[0] == 403
    assert client.get("/events", Host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:9", "run.localhost"])
def test_a_local_host_header_is_accepted_with_any_port(client, host):
    assert client.get("/api/status", Host=host)[0] == 200


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
        ("GET", "/events?after=" + "9" * 5000, 400),
        ("GET", "/api/state?rank=" + "9" * 5000, 400),
        ("GET", "/api/state?rank=%D9%A3", 400),
        ("GET", "/api/points?from=1e999&to=" + "9" * 5000, 200),
        ("GET", "/api/points?most=" + "9" * 18, 200),
        ("GET", "//evil.example", 404),
        ("GET", "//evil.example/api/state", 404),
        ("GET", "//[", 404),
        ("GET", "/?" + "a&" * 100, 400),
        ("BREW", "/api/state", 405),
        ("HEAD", "/", 200),
        ("GET", "/?any=thing", 200),
    ],
)
def test_each_request_gets_the_right_status_and_security_headers(client, method, path, status):
    actual, headers, body = client.get(path, method=method)
    assert actual == status
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in headers
    assert (body == b"") == (method == "HEAD")


@pytest.mark.parametrize(
    "text", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 9000, b"\x00\r\n\r\n"]
)
def test_an_invalid_request_does_not_affect_others(client, text):
    with socket.create_connection(("127.0.0.1", client.port), timeout=60) as raw:
        raw.sendall(text)
    assert client.get("/api/status")[0] == 200


@pytest.mark.parametrize("seen", ["9" * 5000, "9" * 19, "-1", "x", "\xb2", "1.5"])
def test_an_invalid_last_event_id_is_answered_without_a_traceback(client, capfd, seen):
    status, _, body = client.get("/events", **{"Last-Event-ID": seen})
    assert status == 400
    assert body.startswith(b"Last-Event-ID=")
    assert len(body) < 200
    assert capfd.readouterr().err == ""


def test_a_request_with_two_host_headers_is_invalid():
    assert parse(b"GET / HTTP/1.1\r\nHost: localhost\r\nhost: evil.example\r\n\r\n") is None


def test_a_token_is_required_and_moves_from_the_url_to_a_cookie(tmp_path, connect):
    with Monitor(1, tmp_path, console=False, resources=False, step_rate=None) as monitor:
        url = monitor.serve(port=0, token="secret")
        client = connect(url)
        assert url.endswith("/t/secret/")
        assert client.get("/")[0] == 401
        assert client.get("/events")[0] == 401
        assert client.get("/?token=wrong")[0] == 401
        status, headers, _ = client.get("/?token=secret", Accept="text/html")
        assert (status, headers["Location"]) == (303, "/")
        assert "HttpOnly; SameSite=Strict" in headers["Set-Cookie"]
        cookie = headers["Set-Cookie"].partition(";")[0]
        assert client.get("/", Cookie=cookie)[0] == 200
        assert client.get("/api/state", Authorization="Bearer secret")[0] == 200
        monitor.close()


@pytest.mark.parametrize("token", ["a b&c=d#e/f?", "größe;x", "100%"])
def test_the_url_works_with_any_token_and_paths_can_be_appended(tmp_path, connect, token):
    with Monitor(1, tmp_path, console=False, resources=False, step_rate=None) as monitor:
        url = monitor.serve(port=0, token=token)
        client = connect(url)
        monitor.log(0, {"loss": 0.5}, duration=1.0)
        with urlopen(url + "api/history") as response:
            assert json.load(response)[0]["metrics"] == {"loss": 0.5}
        path = "/" + url.split("/", 3)[3]
        status, headers, _ = client.get(path.removesuffix("/"))
        assert (status, headers["Location"]) == (303, path)
        assert client.get(path)[0] == 200  # a client without cookies is not redirected
        status, headers, _ = client.get(path, Accept="text/html,*/*;q=0.8")
        assert (status, headers["Location"]) == (303, "/")
        cookie = headers["Set-Cookie"].partition(";")[0]
        assert client.get("/api/state", Cookie=cookie)[0] == 200
        bearer = f"Bearer {token}".encode().decode("latin-1")
        assert client.get("/api/state", Authorization=bearer)[0] == 200
        monitor.close()


def test_a_page_for_other_machines_gets_a_generated_token(tmp_path, connect):
    with Monitor(1, tmp_path, console=False, resources=False, step_rate=None) as monitor:
        url = monitor.serve(port=0, host="0.0.0.0")
        client = connect(url)
        token = url.partition("/t/")[2].rstrip("/")
        assert len(token) > 16
        assert client.get("/api/state")[0] == 401
        assert client.get("/api/state", Host="gpu-box:1", Authorization=f"Bearer {token}")[0] == 200
        monitor.close()


@pytest.mark.parametrize(
    "text", [b"GET /\r\n\r\n", b"GET  HTTP/1.1\r\n\r\n", b"GET nothing HTTP/1.1\r\n\r\n"]
)
def test_an_incomplete_request_is_not_parsed(text):
    assert parse(text) is None
