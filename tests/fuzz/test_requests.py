"""Malformed HTTP requests to a live page: an answer without a traceback, and the page keeps working."""

import contextlib
import json
import re
import socket
from urllib.parse import quote, urlsplit

import pytest

from flodl.core import log
from flodl.monitor import Monitor

METHODS = ["GET", "GET", "GET", "HEAD", "POST", "PUT", "OPTIONS", "BREW", "", "get", "G\0T", "\xff"]
PATHS = [
    "/", "/events", "/graph.svg", "/api/state", "/api/points", "/api/runs", "/api/status", "/api/history",
    "/api/", "/api", "/t/", "/t/secret/", "/t/secret/api/state", "/t/%00", "//evil.example", "//[", "/%",
    "/%00", "/../../etc/passwd", "*", "http://localhost/", "", "/\u00e9", "/" + "a" * 3000, "/?", "/#",
    "/events#x",
]  # fmt: skip
PARAMETERS = ["rank", "run", "after", "once", "from", "to", "most", "server", "browser", "token", "x", ""]
VALUES = [
    "", "0", "1", "-1", "2.5", "1e999", "-inf", "nan", "9" * 18, "9" * 19, "9" * 5000, "0x10", "1_0",
    "\u0663", "\u00b2", "true", "x", "\0", "secret", "<script>", "%", "%ff", "a b", "'", "\ud800",
]  # fmt: skip
HEADERS = [
    "Host",
    "Host",
    "Last-Event-ID",
    "Authorization",
    "Cookie",
    "Accept",
    "Content-Length",
    "X",
    "",
    ":",
]
HEADERS += ["Transfer-Encoding", "Range", "Connection", "Expect", "Upgrade"]
TEXTS = [
    "localhost", "127.0.0.1", "[::1]:1", "[", "evil.example", "a@localhost", "Bearer secret", "Bearer \xff",
    "Basic x", "flodl_1=secret", 'a="\\', '"' * 2000, "\\" * 2000, ";=;=", "text/html", "chunked", "close",
]  # fmt: skip


STATUS = re.compile(rb"HTTP/1\.1 (200|204|303|400|401|403|404|405|408|409|431) |\Z")


def request(rng):
    """Return the bytes of a request, most of which are close to valid."""
    if rng.random() < 0.1:
        return bytes(rng.randrange(256) for _ in range(rng.choice([0, 1, 10, 200, 40_000])))
    pairs = [(rng.choice(PARAMETERS), rng.choice(VALUES)) for _ in range(rng.choice([0, 1, 2, 40]))]
    query = "&".join(f"{name}={quote(value, errors='replace')}" for name, value in pairs)
    target = rng.choice(PATHS) + (f"?{query}" if pairs else "")
    version = rng.choice(["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2", "HTTP/1.", "", "X"])
    lines = [f"{rng.choice(METHODS)} {target} {version}"]
    for _ in range(rng.choice([0, 1, 2, 5, 300])):
        lines.append(f"{rng.choice(HEADERS)}: {rng.choice(rng.choice([VALUES, TEXTS]))}")
    newline = rng.choice(["\r\n", "\r\n", "\r\n", "\n", "\r"])
    content = (newline.join(lines) + newline * 2).encode("utf-8", "surrogatepass")
    if rng.random() < 0.2:
        at = rng.randint(0, len(content))
        content = content[:at] + bytes([rng.randrange(256)]) + content[at + rng.randint(0, 2) :]
    return content[: rng.randint(0, len(content))] if rng.random() < 0.1 else content


def answer(port, content):
    """Send a request, and return everything that the server sends."""
    found = b""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as raw,
        contextlib.suppress(ConnectionError),
    ):
        raw.sendall(content)
        with contextlib.suppress(OSError):  # the server has refused the request and closed the connection
            raw.shutdown(socket.SHUT_WR)
        while part := raw.recv(1 << 16):
            found += part
    return found


@pytest.mark.parametrize("token", [None, "secret"])
def test_any_request_gets_an_answer_and_the_page_keeps_working(tmp_path, fuzz, capfd, token):
    monitor = Monitor(3, tmp_path, console=False, resources=False, step_rate=None)
    port = urlsplit(monitor.serve(port=0, token=token)).port
    capfd.readouterr()
    log.set_verbosity("debug")
    try:
        for epoch in range(2):
            monitor.log_step(epoch, {"loss": 0.5}, epoch=epoch)
            monitor.log(epoch, {"loss": 0.5}, duration=1.0)

        def check(rng):
            found = answer(port, request(rng))
            assert re.match(rb"HTTP/1\.1 (200|204|303|400|401|403|404|405|408|409|431) |\Z", found), found[
                :200
            ]
            status = answer(port, f"GET /api/status?token={token} HTTP/1.1\r\n\r\n".encode())
            assert json.loads(status.partition(b"\r\n\r\n")[2])["state"] == "running"

        fuzz(check)
        shown = capfd.readouterr()
        assert "Traceback" not in shown.err + shown.out
        assert "live page: " not in shown.err + shown.out, "an exception was logged"
    finally:
        log.set_verbosity("normal")
        monitor.close()
