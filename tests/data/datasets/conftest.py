"""A real HTTP server on this machine, with ranges and configurable faults."""

import http.server
import re
import threading

import pytest


class Server:
    """Serves one content, or the files of a folder; each request uses the next of `faults`."""

    def __init__(self):
        self.content, self.files, self.faults, self.requests = b"", None, [], []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                server.answer(self)

            def log_message(self, *_):
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()
        self.base = f"http://127.0.0.1:{self._http.server_address[1]}"
        self.url = f"{self.base}/file.bin"

    def answer(self, handler):
        asked = handler.headers.get("Range")
        self.requests.append(asked)
        fault = self.faults.pop(0) if self.faults else None
        content = self.content if self.files is None else (self.files / handler.path[1:]).read_bytes()
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and fault != "no ranges" else 0
        if isinstance(fault, int):
            handler.send_error(fault)
            return
        if start >= len(content):
            handler.send_error(416)
            return
        body = content[start:]
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: len(body) // 3] if fault == "break" else body)

    def close(self):
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@pytest.fixture
def server():
    """A server that runs for one test."""
    server = Server()
    yield server
    server.close()
