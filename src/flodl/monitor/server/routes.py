"""The routes of the server: the page, its event streams, and a JSON endpoint for every panel."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from flodl.core import log

from ..exports import live_page
from .http import (
    MAX_HEADER_BYTES,
    TOKEN_PREFIX,
    BadParameterError,
    Request,
    Response,
    error_response,
    has_token,
    is_local_host,
    is_loopback,
    json_response,
    parse,
    stream_head,
)
from .source import RunSource, distinct_names
from .sse import message
from .subscribers import Subscriber, Subscribers

_MAX_SUBSCRIBERS = 200
# Per browser: it opens at most six connections to a server, and each page needs one for its requests.
_MAX_STREAMS = 4
_REQUEST_TIMEOUT_S = 10.0
_PANELS = ("history", "metrics", "resources", "progress", "config", "graph", "events", "ranks")


class Routes:
    """Respond to requests; lives on the server's thread."""

    def __init__(
        self, runs: Sequence[RunSource], subscribers: Subscribers, *, host: str, port: int, token: str | None
    ) -> None:
        self._runs = runs
        self._folders = distinct_names([run.folder for run in runs])
        # A different server may use this port later: pages send this id, so that the change is noticed.
        self._identity = secrets.token_hex(8)
        self._subscribers = subscribers
        self._is_local = is_loopback(host)
        self._token = token
        self._cookie = f"flodl_{port}"
        self._page, self._policy = live_page()
        self._open: set[asyncio.StreamWriter] = set()
        self._streams: Counter[str] = Counter()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request and respond to it; an event stream lasts until the client disconnects."""
        self._open.add(writer)
        try:
            text = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _REQUEST_TIMEOUT_S)
            request = parse(text) if len(text) <= MAX_HEADER_BYTES else None
            if request is None:
                writer.write(error_response(HTTPStatus.BAD_REQUEST, "Invalid request.").to_bytes())
            elif request.path == "/events" and request.method == "GET" and self._denied(request) is None:
                try:
                    await self._stream(request, reader, writer)
                except BadParameterError as error:
                    writer.write(error_response(HTTPStatus.BAD_REQUEST, str(error)).to_bytes())
            else:
                response = self._denied(request) or await self._respond(request)
                writer.write(response.to_bytes(with_body=request.method != "HEAD"))
            await asyncio.wait_for(writer.drain(), 30.0)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client has disconnected or never sent a request
        finally:
            self._open.discard(writer)
            writer.close()

    async def drain(self, timeout_s: float) -> None:
        """Wait until everything written has been sent, at most `timeout_s` seconds."""
        waited_s = 0.0
        while waited_s < timeout_s and any(w.transport.get_write_buffer_size() for w in self._open):
            await asyncio.sleep(0.02)
            waited_s += 0.02

    async def close(self) -> None:
        """Close every connection."""
        for writer in list(self._open):
            writer.transport.abort()
        await asyncio.sleep(0)

    def _denied(self, request: Request) -> Response | None:
        if request.method not in ("GET", "HEAD"):
            return error_response(HTTPStatus.METHOD_NOT_ALLOWED, "This page is read-only. Use GET.")
        if self._is_local and not is_local_host(request.headers.get("host", "localhost")):
            return error_response(
                HTTPStatus.FORBIDDEN, "Only this machine can open this page: use localhost."
            )
        if self._token is not None and not has_token(request, self._token, self._cookie):
            return error_response(
                HTTPStatus.UNAUTHORIZED, "A token is required: open the URL that the run has printed."
            )
        return None

    async def _respond(self, request: Request) -> Response:
        try:
            if request.path == "":
                # The page requests relative URLs, so its own URL has to end with a slash.
                folder = f"/{TOKEN_PREFIX}{quote(request.query['token'], safe='')}/"
                return Response(HTTPStatus.SEE_OTHER, headers={"Location": folder})
            if request.path == "/":
                return self._home(request)
            if not self._is_own(request):
                return error_response(
                    HTTPStatus.CONFLICT, "A different run is served here now. Reload the page."
                )
            index = request.integer("run", 0)
            if index >= len(self._runs):
                raise BadParameterError(f"run={index} is invalid. The runs are 0 to {len(self._runs) - 1}.")
            return await asyncio.to_thread(self._look_up, request, index)
        except BadParameterError as error:
            return error_response(HTTPStatus.BAD_REQUEST, str(error))
        except Exception as error:
            log.debug("live page: %s: %s: %s", request.path, type(error).__name__, error)
            return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "The journal cannot be read.")

    def _home(self, request: Request) -> Response:
        headers = {"Content-Security-Policy": self._policy}
        is_browser = "text/html" in request.headers.get("accept", "")
        if self._token is not None and "token" in request.query and is_browser:
            # Moves the token from the address bar to a cookie. Other clients keep no cookies, so they are not
            # redirected.
            value = quote(self._token, safe="")
            cookie = f"{self._cookie}={value}; HttpOnly; SameSite=Strict; Path=/"
            return Response(HTTPStatus.SEE_OTHER, headers={"Location": "/", "Set-Cookie": cookie})
        return Response(HTTPStatus.OK, self._page, "text/html; charset=utf-8", headers)

    def _is_own(self, request: Request) -> bool:
        return request.query.get("server", self._identity) == self._identity

    def _look_up(self, request: Request, index: int) -> Response:
        run = self._runs[index]
        rank = request.integer("rank", 0)
        name = request.path.removeprefix("/api/")
        if rank and rank not in (known := run.ranks()):
            return error_response(
                HTTPStatus.NOT_FOUND, f"Rank {rank} has recorded nothing. Ranks: {known or 'none'}."
            )
        if request.path == "/graph.svg":
            svg = run.graph_svg()
            if svg is None:
                return error_response(HTTPStatus.NOT_FOUND, "No graph is watched. Call monitor.watch(model).")
            return Response(HTTPStatus.OK, svg.encode(), "image/svg+xml; charset=utf-8")
        if request.path == "/api/runs":
            return json_response([source.status(rank) for source in self._runs])
        if request.path == "/api/status":
            return json_response(run.status(rank))
        if request.path == "/api/state":
            return json_response(
                {**run.state(rank), "server": self._identity, "folder": self._folders[index]}
            )
        if request.path == "/api/points":
            max_points = min(max(request.integer("most", 2000), 2), 20_000)
            start, end = request.number("from"), request.number("to")
            if start is not None and end is not None and start > end:
                raise BadParameterError(f"from={start:g} is greater than to={end:g}. Swap them.")
            return json_response(run.points(rank=rank, start=start, end=end, max_points=max_points))
        if request.path.startswith("/api/") and name in _PANELS:
            return json_response(run.state(rank)[name])
        return error_response(
            HTTPStatus.NOT_FOUND,
            f"There are /, /events, /graph.svg and /api/state|points|runs|status|{'|'.join(_PANELS)}.",
        )

    async def _stream(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        rank = request.integer("rank", 0)
        # A browser that reconnects sends the number of the last message it received.
        seen = request.headers.get("last-event-id", "")
        after = int(seen) if seen.isdecimal() else request.integer("after", -1)
        if len(self._subscribers) >= _MAX_SUBSCRIBERS:
            reason = f"{_MAX_SUBSCRIBERS} pages are open already. Close one first."
            writer.write(error_response(HTTPStatus.SERVICE_UNAVAILABLE, reason).to_bytes())
            return
        browser = request.query.get("browser", "")
        if browser and self._streams[browser] >= _MAX_STREAMS:
            # 204 tells an EventSource not to reconnect: the page polls instead.
            writer.write(Response(HTTPStatus.NO_CONTENT).to_bytes())
            return
        self._streams[browser] += 1
        try:
            await self._follow(request, reader, writer, rank=rank, after=None if after < 0 else after)
        finally:
            self._streams -= Counter((browser,))  # removes names without a stream

    async def _follow(
        self,
        request: Request,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        rank: int,
        after: int | None,
    ) -> None:
        subscriber = Subscriber(writer, rank=rank)
        replay = b""
        if not self._is_own(request) or await self._is_ahead(after):
            # It followed a different run: it has to read the state again instead of the rest of this run.
            reset = message("reset", {}, self._subscribers.last_id)
            writer.write(stream_head() + b"retry: 1000\n\n" + reset)
            return
        if after is None:
            state = await asyncio.to_thread(self._runs[0].state, rank)
            after = int(state["last_id"])
            replay = _replay(state)
        elif await asyncio.to_thread(self._runs[0].has_ended) and after >= self._subscribers.last_id:
            replay = message("complete", {}, self._subscribers.last_id)
        writer.write(stream_head() + b"retry: 1000\n\n" + replay)
        if "once" in request.query:
            self._subscribers.catch_up(subscriber, after=after)
            return
        self._subscribers.join(subscriber, after=after)
        try:
            while await reader.read(1024):
                pass  # clients send nothing more; the end of input means that the client has disconnected
        finally:
            self._subscribers.leave(subscriber)

    async def _is_ahead(self, after: int | None) -> bool:
        """Return whether a client has seen entries that this journal does not contain."""
        if after is None or after <= self._subscribers.last_id:
            return False
        # The journal may contain entries that are not published yet.
        return after > await asyncio.to_thread(self._runs[0].last_id)


def _replay(state: dict[str, Any]) -> bytes:
    """Return all messages so far for a new client: epochs, events and the end."""
    messages = [(record["id"], "told", record) for record in state["events"]]
    messages += [(record["id"], "epoch", record) for record in state["history"]]
    parts = [message(name, record, id) for id, name, record in sorted(messages, key=lambda item: item[0])]
    if state["status"]["state"] not in ("running", "lost"):
        parts.append(message("complete", {"status": state["status"]["state"]}, state["last_id"]))
    return b"".join(parts)
