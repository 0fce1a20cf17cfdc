"""Many, slow and half-open connections: they are capped and timed out, and the page keeps working."""

import asyncio
import contextlib
import gc
import http.client
import os
import socket
import time
from types import SimpleNamespace

import pytest

from flodl.monitor import Monitor
from flodl.monitor.server import Server
from flodl.monitor.server import connections as connections_module
from flodl.monitor.server import subscribers as subscribers_module
from flodl.monitor.server.connections import Connections
from flodl.monitor.server.subscribers import Subscriber, Subscribers

HALF = b"GET /api/status HTTP/1.1\r\nHost: local"


@pytest.fixture
def few(monkeypatch):
    """Allow at most eight connections, six per address."""
    monkeypatch.setattr(connections_module, "_MAX_OPEN", 8)
    return connections_module


@pytest.fixture
def send(request):
    """Open a connection, send some bytes and return the socket."""

    def connect(port, content=HALF, source="127.0.0.1"):
        raw = socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(source, 0))
        request.addfinalizer(raw.close)
        raw.sendall(content)
        return raw

    return connect


def num_open(monitor):
    return len(monitor._page._server._connections)


def wait_until(condition, timeout_s=20.0):
    end_s = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.01)
    assert condition()


def response_of(raw):
    content = b""
    with contextlib.suppress(ConnectionError):
        while part := raw.recv(65536):
            content += part
    return content


def test_half_sent_requests_are_capped_and_do_not_lock_others_out(few, monkeypatch, monitor, client, send):
    monkeypatch.setattr(few, "_PATIENCE_S", 0.0)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    sockets = [send(client.port) for _ in range(60)]
    assert client.get("/api/status")[0] == 200
    assert num_open(monitor) <= 6
    if before:
        # Twice: a socket here has its counterpart in the server, which runs in the same process.
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before + len(sockets) + 8 + 16)


def test_a_connection_beyond_the_cap_gets_a_503_and_a_free_one_works_again(
    few, monkeypatch, monitor, client, send
):
    monkeypatch.setattr(few, "_PATIENCE_S", 600.0)
    monkeypatch.setattr(few, "_REQUEST_TIMEOUT_S", 600.0)
    waiting = [send(client.port) for _ in range(6)]
    wait_until(lambda: num_open(monitor) == 6)
    status, headers, body = client.get("/api/status")
    assert (status, headers["Retry-After"], headers["Connection"]) == (503, "2", "close")
    assert body.startswith(b"The page has 6 open connections. Close some")
    waiting[0].close()
    wait_until(lambda: num_open(monitor) == 5)
    assert client.get("/api/status")[0] == 200


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs several loopback addresses")
def test_one_address_cannot_use_all_connections(few, monkeypatch, monitor, client, send):
    monkeypatch.setattr(few, "_PATIENCE_S", 600.0)
    waiting = [send(client.port) for _ in range(6)]
    wait_until(lambda: num_open(monitor) == 6)
    assert client.get("/api/status")[0] == 503
    other = http.client.HTTPConnection("127.0.0.1", client.port, timeout=60, source_address=("127.0.0.2", 0))
    other.request("GET", "/api/status")
    assert other.getresponse().status == 200
    other.close()
    assert waiting


def test_half_of_the_connections_are_reserved_for_requests(few, client):
    streams = [client.stream() for _ in range(4)]
    status, _, body = client.get("/events")
    assert (status, body) == (503, b"4 pages are open already. Close one first.\n")
    assert client.get("/api/status")[0] == 200
    for stream in streams:
        stream.close()


def test_a_request_that_takes_too_long_is_answered_with_408(monkeypatch, monitor, client, send):
    monkeypatch.setattr(connections_module, "_REQUEST_TIMEOUT_S", 0.05)
    assert response_of(send(client.port)).startswith(b"HTTP/1.1 408 ")
    assert response_of(send(client.port, b"")).startswith(b"HTTP/1.1 408 ")
    wait_until(lambda: num_open(monitor) == 0)


def test_headers_that_are_too_long_are_answered_with_431(client, send):
    raw = send(client.port, b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 2800)
    assert response_of(raw)[:13] in (b"HTTP/1.1 431 ", b"")  # a reset may discard the answer


def test_a_client_that_does_not_read_its_response_is_dropped(monkeypatch):
    monkeypatch.setattr(connections_module, "_SEND_TIMEOUT_S", 0.05)

    async def answer(_request, _reader, writer):
        writer.write(b"x" * 50_000_000)

    async def serve():
        connections = Connections(answer, most=4)
        server = await asyncio.start_server(connections.handle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        raw = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", port), 60)
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0.05)
        for _ in range(400):
            if not len(connections):
                break
            await asyncio.sleep(0.02)
        server.close()
        raw.close()
        return len(connections)

    assert asyncio.run(serve()) == 0


def test_a_stream_whose_client_does_not_read_is_dropped(monkeypatch):
    monkeypatch.setattr(subscribers_module, "_MAX_STALLED_S", 60.0)
    now = [1000.0]
    monkeypatch.setattr(subscribers_module.time, "monotonic", lambda: now[0])
    unread, aborted = [0], []
    transport = SimpleNamespace(
        get_write_buffer_size=lambda: unread[0], is_closing=lambda: False, abort=lambda: aborted.append(1)
    )
    writer = SimpleNamespace(transport=transport, write=lambda content: None)
    subscribers = Subscribers(last_id=0, total_epochs=lambda: 0)
    subscribers.join(Subscriber(writer), after=0)
    for _ in range(20):  # it reads everything
        now[0] += 15.0
        subscribers.keep_alive()
    for _ in range(20):  # it reads slowly: a byte of each message
        now[0] += 15.0
        unread[0] += 10
        subscribers.keep_alive()
    assert not aborted
    for _ in range(6):  # it reads nothing
        now[0] += 15.0
        unread[0] += len(b": still here\n\n")
        subscribers.keep_alive()
    assert aborted == [1]
    assert len(subscribers) == 0


def test_a_stream_whose_client_sends_more_data_is_closed(monitor, client, send):
    raw = send(client.port, b"GET /events HTTP/1.1\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        for _ in range(50):
            raw.sendall(b"x" * 10_000)
    wait_until(lambda: num_open(monitor) == 0)


def test_the_cap_is_at_most_a_quarter_of_the_file_handles(monkeypatch):
    resource = pytest.importorskip("resource")
    for limit, expected in [(256, 64), (20, 8), (1_000_000, 256), (resource.RLIM_INFINITY, 256)]:
        monkeypatch.setattr(resource, "getrlimit", lambda _kind, limit=limit: (limit, limit))
        assert Connections(lambda *_: None).most == expected


def test_closing_the_page_ends_every_connection_without_a_message(tmp_path, connect, send, capfd):
    monitor = Monitor(1, tmp_path, console=False, resources=False)
    client = connect(monitor.serve(port=0))
    capfd.readouterr()
    sockets = [send(client.port), send(client.port, b"GET /events HTTP/1.1\r\n\r\n")]
    wait_until(lambda: num_open(monitor) == 2)
    monitor.close()
    for raw in sockets:
        response_of(raw)
    assert capfd.readouterr() == ("", "")


def test_connections_of_the_last_moment_are_closed_with_the_server():
    """A browser opens connections ahead of its requests, also while the server closes."""
    for _ in range(20):
        server = Server([], port=0)
        with contextlib.ExitStack() as sockets:
            for number in range(6):
                if number == 4:
                    server._call_soon(server._stopping.set)
                with contextlib.suppress(ConnectionError):
                    sockets.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            server.close()
        server._thread.join(60)
    del server
    gc.collect()  # an open transport would warn, and warnings are errors in tests


def test_refused_connections_are_closed_with_the_server(few, send):
    with Server([], port=0) as server:
        clients = [send(server.port) for _ in range(12)]
        wait_until(lambda: len(server._connections) == few._MAX_OPEN * 3 // 4)
    for client in clients:
        response_of(client)  # returns when the connection is closed
