"""The routes of the server: the page, its event streams, and a JSON endpoint for every panel."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

from flodl.core import log
from flodl.core.errors import MonitorError

from ..exports import live_page
from .http import (
    TOKEN_PREFIX,
    BadParameterError,
    Request,
    Response,
    error_response,
    has_token,
    is_local_host,
    is_loopback,
    json_response,
    stream_head,
)
from .run_list import RunList
from .sse import message
from .subscribers import Subscriber, Subscribers

# Per browser: it opens at most six connections to a server, and each page needs one for its requests.
_MAX_STREAMS = 4
_MAX_EXTRA_BYTES = 4096
_PANELS = ("history", "metrics", "resources", "progress", "config", "graph", "events", "ranks", "rank_work")
_T = TypeVar("_T")


class Routes:
    """Respond to requests; lives on the server's thread."""

    def __init__(
        self,
        runs: RunList,
        subscribers: Subscribers,
        *,
        host: str,
        port: int,
        token: str | None,
        max_streams: int,
    ) -> None:
        self._runs = runs
        # A different server may use this port later: pages send this id, so that the change is noticed.
        self._identity = secrets.token_hex(8)
        self._subscribers = subscribers
        self._is_local = is_loopback(host)
        self._token = token
        self._cookie = f"flodl_{port}"
        self._page, self._policy = live_page()
        self._max_streams = max_streams
        self._streams: Counter[str] = Counter()

    async def answer(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Respond to a request; an event stream lasts until the client disconnects."""
        is_stream = request.path == "/events" and request.method == "GET" and len(self._runs) > 0
        response = self._denied(request)
        if response is None and is_stream:
            try:
                await self._stream(request, reader, writer)
                return
            except BadParameterError as error:
                response = error_response(HTTPStatus.BAD_REQUEST, str(error))
            except MonitorError as error:
                response = _unreadable(request, error)
        elif response is None:
            response = await self._respond(request)
        writer.write(response.to_bytes(with_body=request.method != "HEAD"))

    def _denied(self, request: Request) -> Response | None:
        if request.method not in ("GET", "HEAD"):
            return error_response(
                HTTPStatus.METHOD_NOT_ALLOWED, "This page is read-only. Use GET.", {"Allow": "GET, HEAD"}
            )
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
            if request.path == "/api/runs":
                found = await asyncio.to_thread(self._runs.comparison)
                return json_response({**found, "server": self._identity})
            index = request.integer("run", 0)
            if not self._runs:
                return error_response(HTTPStatus.NOT_FOUND, "No run has started yet.")
            if index >= len(self._runs):
                raise BadParameterError(f"run={index} is invalid. The runs are 0 to {len(self._runs) - 1}.")
            return await asyncio.to_thread(self._look_up, request, index)
        except BadParameterError as error:
            return error_response(HTTPStatus.BAD_REQUEST, str(error))
        except Exception as error:
            return _unreadable(request, error)

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
        if request.path == "/api/status":
            return json_response(run.status(rank))
        if request.path == "/api/state":
            return json_response(
                {
                    **run.state(rank),
                    "server": self._identity,
                    "folder": self._runs.name(index),
                    "run": index,
                }
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
        after = request.last_event_id()
        if after is None:
            after = request.integer("after", -1)
        if len(self._subscribers) >= self._max_streams:
            reason = f"{self._max_streams} pages are open already. Close one first."
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
            state = await _read(self._runs[0].state, rank)
            after = int(state["last_id"])
            replay = _replay(state)
        elif await _read(self._runs[0].has_ended) and after >= self._subscribers.last_id:
            replay = message("complete", {}, self._subscribers.last_id)
        writer.write(stream_head() + b"retry: 1000\n\n" + replay)
        if "once" in request.query:
            self._subscribers.catch_up(subscriber, after=after)
            return
        self._subscribers.join(subscriber, after=after)
        try:
            # Clients send nothing more: the end of input means that the client has disconnected.
            await reader.readexactly(_MAX_EXTRA_BYTES)
        finally:
            self._subscribers.leave(subscriber)

    async def _is_ahead(self, after: int | None) -> bool:
        """Return whether a client has seen entries that this journal does not contain."""
        if after is None or after <= self._subscribers.last_id:
            return False
        # The journal may contain entries that are not published yet.
        return after > await _read(self._runs[0].last_id)


async def _read(look_up: Callable[..., _T], *arguments: Any) -> _T:
    """Read a journal in another thread; an `OSError` must not look like a lost connection."""
    try:
        return await asyncio.to_thread(look_up, *arguments)
    except OSError as error:
        raise MonitorError(f"the journal cannot be read: {error}") from error


def _unreadable(request: Request, error: Exception) -> Response:
    log.debug("live page: %s: %s: %s", request.path, type(error).__name__, error)
    return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "The journal cannot be read.")


def _replay(state: dict[str, Any]) -> bytes:
    """Return all messages so far for a new client: epochs, events and the end."""
    messages = [(record["id"], "told", record) for record in state["events"]]
    messages += [(record["id"], "epoch", record) for record in state["history"]]
    parts = [message(name, record, id) for id, name, record in sorted(messages, key=lambda item: item[0])]
    if state["status"]["state"] not in ("running", "lost"):
        parts.append(message("complete", {"status": state["status"]["state"]}, state["last_id"]))
    return b"".join(parts)
