"""A server with the few requests of the hub that huggingface_hub makes, and small models to serve."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class HubServer:
    """The state of the server; change it to make requests fail."""

    files: dict[str, bytes] = field(default_factory=dict)
    token: str | None = None  # if set, requests without it get 401
    cut: dict[str, int] = field(default_factory=dict)  # send only the first bytes of a file
    lists_files: bool = True
    requests: list[str] = field(default_factory=list)
    url: str = ""
    disconnect: Callable[[], None] = lambda: None


def _handler(server: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, *, with_body: bool) -> None:
            server.requests.append(f"{self.command} {self.path}")
            path = self.path.partition("?")[0]
            if server.token and self.headers.get("Authorization") != f"Bearer {server.token}":
                self.fail(401, "RepoNotFound")
            elif found := re.fullmatch(r"/api/models/me/tiny(?:/revision/(\w+))?", path):
                if not server.lists_files:
                    self.fail(501, "")
                elif found[1] not in (None, "main", COMMIT):
                    self.fail(404, "RevisionNotFound")
                else:
                    siblings = [{"rfilename": name} for name in server.files]
                    content = {"id": "me/tiny", "modelId": "me/tiny", "sha": COMMIT, "siblings": siblings}
                    self.reply(json.dumps(content).encode(), with_body=with_body)
            elif found := re.fullmatch(r"/me/tiny/resolve/(\w+)/(.+)", path):
                if found[1] not in ("main", COMMIT):
                    self.fail(404, "RevisionNotFound")
                elif found[2] not in server.files:
                    self.fail(404, "EntryNotFound")
                else:
                    cut = server.cut.get(found[2])
                    self.reply(server.files[found[2]], with_body=with_body, cut=cut)
            else:
                self.fail(404, "RepoNotFound")

        def reply(self, content: bytes, *, with_body: bool, cut: int | None = None) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if with_body:
                self.wfile.write(content[:cut])
            if cut is not None:
                self.close_connection = True

        def fail(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            self.end_headers()

    return Handler


def use_endpoint(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Do what `HF_ENDPOINT` does when huggingface_hub is imported."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def hub(monkeypatch, tmp_path) -> Iterator[HubServer]:
    """Serve the repository me/tiny, and make huggingface_hub use this server and an empty cache."""
    constants = pytest.importorskip("huggingface_hub.constants")
    utils = pytest.importorskip("huggingface_hub.utils")
    state = HubServer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(state))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    use_endpoint(monkeypatch, state.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    # The library waits a second before each of its attempts to resume a download.
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    utils.disable_progress_bars()
    utils.logging.set_verbosity_error()
    state.disconnect = lambda: use_endpoint(monkeypatch, "http://127.0.0.1:1")
    yield state
    server.shutdown()
    server.server_close()
    thread.join()
