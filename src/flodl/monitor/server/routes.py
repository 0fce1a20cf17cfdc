"""Which address gives what: the page, its streams of events, and a JSON twin of every panel."""

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
    MOST_HEADER_BYTES,
    TOKEN_FOLDER,
    Answer,
    Request,
    UnusableNumberError,
    is_loopback,
    json_answer,
    knows_token,
    names_this_machine,
    parse,
    refusal,
    stream_head,
)
from .source import RunSource, told_apart
from .sse import message
from .subscribers import Audience, Watcher

_MOST_WATCHERS = 200
# Of one browser: it keeps six connections to one server, and each page needs one for its requests.
_MOST_STREAMS = 4
_PATIENCE_S = 10.0
_TWINS = ("history", "metrics", "resources", "progress", "config", "graph", "events", "ranks")


class Routes:
    """Answer requests; lives on the server's thread."""

    def __init__(
        self, runs: Sequence[RunSource], audience: Audience, *, host: str, port: int, token: str | None
    ) -> None:
        self._runs = runs
        self._folders = told_apart([run.folder for run in runs])
        # Another server may take this port later: a page says whose it is, and learns when that has changed.
        self._identity = secrets.token_hex(8)
        self._audience = audience
        self._is_local = is_loopback(host)
        self._token = token
        self._cookie = f"flodl_{port}"
        self._page, self._policy = live_page()
        self._open: set[asyncio.StreamWriter] = set()
        self._streams: Counter[str] = Counter()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request and answer it; a stream of events goes on until somebody leaves."""
        self._open.add(writer)
        try:
            text = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _PATIENCE_S)
            request = parse(text) if len(text) <= MOST_HEADER_BYTES else None
            if request is None:
                writer.write(refusal(HTTPStatus.BAD_REQUEST, "This is no request.").to_bytes())
            elif request.path == "/events" and request.method == "GET" and self._refused(request) is None:
                try:
                    await self._stream(request, reader, writer)
                except UnusableNumberError as error:
                    writer.write(refusal(HTTPStatus.BAD_REQUEST, str(error)).to_bytes())
            else:
                answer = self._refused(request) or await self._answer(request)
                writer.write(answer.to_bytes(with_body=request.method != "HEAD"))
            await asyncio.wait_for(writer.drain(), 30.0)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked has gone, or never really asked
        finally:
            self._open.discard(writer)
            writer.close()

    async def drain(self, patience_s: float) -> None:
        """Wait a moment until what was written is on its way."""
        waited_s = 0.0
        while waited_s < patience_s and any(w.transport.get_write_buffer_size() for w in self._open):
            await asyncio.sleep(0.02)
            waited_s += 0.02

    async def close(self) -> None:
        """End every open connection."""
        for writer in list(self._open):
            writer.transport.abort()
        await asyncio.sleep(0)

    def _refused(self, request: Request) -> Answer | None:
        if request.method not in ("GET", "HEAD"):
            return refusal(HTTPStatus.METHOD_NOT_ALLOWED, "This page can only be read.")
        if self._is_local and not names_this_machine(request.headers.get("host", "localhost")):
            return refusal(HTTPStatus.FORBIDDEN, "This page is served to this machine alone: use localhost.")
        if self._token is not None and not knows_token(request, self._token, self._cookie):
            return refusal(
                HTTPStatus.UNAUTHORIZED, "A token is needed: open the address that the run has printed."
            )
        return None

    async def _answer(self, request: Request) -> Answer:
        try:
            if request.path == "":
                # The page asks for what lies beside it, so it has to be in the folder.
                folder = f"/{TOKEN_FOLDER}{quote(request.query['token'], safe='')}/"
                return Answer(HTTPStatus.SEE_OTHER, headers={"Location": folder})
            if request.path == "/":
                return self._home(request)
            if not self._is_meant(request):
                return refusal(HTTPStatus.CONFLICT, "Another run is served here now: read the page again.")
            at = request.whole("run", 0)
            if at >= len(self._runs):
                raise UnusableNumberError(
                    f"run={at} is not usable: the runs here are 0 to {len(self._runs) - 1}."
                )
            return await asyncio.to_thread(self._look_up, request, at)
        except UnusableNumberError as error:
            return refusal(HTTPStatus.BAD_REQUEST, str(error))
        except Exception as error:
            log.debug("the live page: %s: %s: %s", request.path, type(error).__name__, error)
            return refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "The journal could not be read.")

    def _home(self, request: Request) -> Answer:
        headers = {"Content-Security-Policy": self._policy}
        is_browser = "text/html" in request.headers.get("accept", "")
        if self._token is not None and "token" in request.query and is_browser:
            # The token leaves the address bar; the cookie is sent back to this server only. A tool keeps no
            # cookie, and would be refused at the next address.
            value = quote(self._token, safe="")
            cookie = f"{self._cookie}={value}; HttpOnly; SameSite=Strict; Path=/"
            return Answer(HTTPStatus.SEE_OTHER, headers={"Location": "/", "Set-Cookie": cookie})
        return Answer(HTTPStatus.OK, self._page, "text/html; charset=utf-8", headers)

    def _is_meant(self, request: Request) -> bool:
        return request.query.get("server", self._identity) == self._identity

    def _look_up(self, request: Request, at: int) -> Answer:
        run = self._runs[at]
        rank = request.whole("rank", 0)
        name = request.path.removeprefix("/api/")
        if rank and rank not in (known := run.ranks()):
            return refusal(
                HTTPStatus.NOT_FOUND, f"No rank {rank} has told anything; these have: {known or 'none'}."
            )
        if request.path == "/graph.svg":
            svg = run.picture()
            if svg is None:
                return refusal(HTTPStatus.NOT_FOUND, "No graph is watched: call monitor.watch(model).")
            return Answer(HTTPStatus.OK, svg.encode(), "image/svg+xml; charset=utf-8")
        if request.path == "/api/runs":
            return json_answer([source.status(rank) for source in self._runs])
        if request.path == "/api/status":
            return json_answer(run.status(rank))
        if request.path == "/api/state":
            return json_answer({**run.state(rank), "server": self._identity, "folder": self._folders[at]})
        if request.path == "/api/points":
            most = min(max(request.whole("most", 2000), 2), 20_000)
            start, end = request.number("from"), request.number("to")
            if start is not None and end is not None and start > end:
                raise UnusableNumberError(f"from={start:g} lies after to={end:g}: give the lower one first.")
            return json_answer(run.points(rank=rank, start=start, end=end, most=most))
        if request.path.startswith("/api/") and name in _TWINS:
            return json_answer(run.state(rank)[name])
        return refusal(
            HTTPStatus.NOT_FOUND,
            f"There are /, /events, /graph.svg and /api/state|points|runs|status|{'|'.join(_TWINS)}.",
        )

    async def _stream(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        rank = request.whole("rank", 0)
        # A page that lost its connection says by itself what it saw last.
        seen = request.headers.get("last-event-id", "")
        after = int(seen) if seen.isdecimal() else request.whole("after", -1)
        if len(self._audience) >= _MOST_WATCHERS:
            why = f"{_MOST_WATCHERS} pages are open already."
            writer.write(refusal(HTTPStatus.SERVICE_UNAVAILABLE, why).to_bytes())
            return
        browser = request.query.get("browser", "")
        if browser and self._streams[browser] >= _MOST_STREAMS:
            # How to tell an EventSource not to come back: the page asks once in a while instead.
            writer.write(Answer(HTTPStatus.NO_CONTENT).to_bytes())
            return
        self._streams[browser] += 1
        try:
            await self._follow(request, reader, writer, rank=rank, after=None if after < 0 else after)
        finally:
            self._streams -= Counter((browser,))  # names without a stream are forgotten

    async def _follow(
        self,
        request: Request,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        rank: int,
        after: int | None,
    ) -> None:
        watcher = Watcher(writer, rank=rank)
        replay = b""
        if not self._is_meant(request) or await self._is_ahead(after):
            # It has seen another run: it should read the state anew, and not be told the rest of this one.
            reset = message("reset", {}, self._audience.last_id)
            writer.write(stream_head() + b"retry: 1000\n\n" + reset)
            return
        if after is None:
            state = await asyncio.to_thread(self._runs[0].state, rank)
            after = int(state["last_id"])
            replay = _replay(state)
        elif await asyncio.to_thread(self._runs[0].has_ended) and after >= self._audience.last_id:
            replay = message("complete", {}, self._audience.last_id)
        writer.write(stream_head() + b"retry: 1000\n\n" + replay)
        if "once" in request.query:
            self._audience.catch_up(watcher, after=after)
            return
        self._audience.join(watcher, after=after)
        try:
            while await reader.read(1024):
                pass  # nothing is expected; the end of it says that the reader has left
        finally:
            self._audience.leave(watcher)

    async def _is_ahead(self, after: int | None) -> bool:
        """Say whether a reader has seen what this journal does not hold."""
        if after is None or after <= self._audience.last_id:
            return False
        # What is in the journal may not have been told yet.
        return after > await asyncio.to_thread(self._runs[0].last_number)


def _replay(state: dict[str, Any]) -> bytes:
    """Tell a reader that asks for no number in particular everything so far: epochs, events and the end."""
    told = [(record["id"], "told", record) for record in state["events"]]
    told += [(record["id"], "epoch", record) for record in state["history"]]
    parts = [message(name, record, id) for id, name, record in sorted(told, key=lambda item: item[0])]
    if state["status"]["state"] not in ("running", "lost"):
        parts.append(message("complete", {"status": state["status"]["state"]}, state["last_id"]))
    return b"".join(parts)
