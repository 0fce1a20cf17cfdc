"""A served monitor, and a client for its server."""

import http.client
import json
from urllib.parse import urlsplit

import pytest

from flodl.monitor import Monitor


class Client:
    """Send requests to the server at a URL."""

    def __init__(self, url):
        self.port = urlsplit(url).port

    def get(self, path, method="GET", **headers):
        """Return the status, the headers and the body of a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, dict(response.getheaders()), body

    def json(self, path):
        """Return the data of a successful response."""
        status, _, body = self.get(path)
        assert status == 200, body
        return json.loads(body)

    def stream(self, path="/events", **headers):
        """Open an event stream."""
        return Stream(self.port, path, headers)


class Stream:
    """An open event stream, read message by message."""

    def __init__(self, port, path, headers):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.connection.request("GET", path, headers=headers)
        self.response = self.connection.getresponse()
        assert self.response.status == 200

    def until(self, name):
        """Return the messages as (id, name, data), up to and including the first with a name."""
        found, message = [], {}
        while not found or found[-1][1] != name:
            line = self.response.readline().decode().rstrip("\n")
            assert self.response.fp is not None, found
            if line:
                key, _, value = line.partition(": ")
                message[key] = value
            elif "event" in message:
                found.append((int(message["id"]), message["event"], json.loads(message["data"])))
                message = {}
            else:
                message = {}
        return found

    def epochs_until(self, name):
        """Return the epochs among the messages up to the first with a name."""
        return [data["epoch"] for _, kind, data in self.until(name) if kind == "epoch"]

    def close(self):
        self.response.close()  # it keeps the connection open by itself
        self.connection.close()


@pytest.fixture
def monitor(tmp_path, monkeypatch):
    monkeypatch.setattr("flodl.monitor.live_page._LINGER_S", 600.0)  # keeps the page open during the test
    created = Monitor(5, tmp_path / "run", console=False, resources=False, step_rate=None)
    created.serve(port=0)
    yield created
    created.close()


@pytest.fixture
def client(monitor):
    return Client(monitor.url)


@pytest.fixture
def connect():
    """Return the client class, for servers other than that of `monitor`."""
    return Client
