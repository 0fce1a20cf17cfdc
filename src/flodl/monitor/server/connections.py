"""Limits for connections, so that a flood of clients leaves training its file handles and its CPU."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus

from flodl.core import log

from .http import MAX_HEADER_BYTES, Request, error_response, parse

# At most this many, and at most a quarter of the file handles that the process may open.
_MAX_OPEN = 256
_MIN_OPEN = 8
_REQUEST_TIMEOUT_S = 5.0
# A client that takes longer to send its request may be dropped for another one.
_PATIENCE_S = 0.5
_SEND_TIMEOUT_S = 30.0
_MIN_SENT_BYTES = 1 << 16
_MAX_REFUSALS = 16
_REFUSAL_S = 1.0
# Rounds of the event loop until `handle` runs for an accepted connection: three, and one to be safe.
_ROUNDS_TO_HANDLE = 4

Answer = Callable[[Request, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(eq=False)
class _Connection:
    writer: asyncio.StreamWriter
    address: str
    is_waiting: bool = True  # the request has not arrived yet
    opened_s: float = field(default_factory=time.monotonic)


class Connections:
    """Read one request from each connection and let `answer` respond to it; lives on the server's thread.

    Connections beyond `most`, or beyond three quarters of it from one address, get a 503. Before that, the
    oldest connection that has not sent its request is dropped: idle clients cannot lock others out.
    """

    def __init__(self, answer: Answer, *, most: int | None = None) -> None:
        self.most = _handles_for_clients() if most is None else most
        self.most_per_address = max(self.most * 3 // 4, 1)
        self._answer = answer
        self._open: list[_Connection] = []  # oldest first
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # also those that are refused
        self._num_refusals = 0

    def __len__(self) -> int:
        return len(self._open)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection from its start to its end."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = writer
        task.add_done_callback(lambda ended: self._tasks.pop(ended, None))
        connection = self._admit(writer)
        if connection is None:
            await self._refuse(reader, writer)
            return
        self._open.append(connection)
        # `drain` then waits until everything has been sent.
        writer.transport.set_write_buffer_limits(0)
        try:
            await self._serve(connection, reader)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # the client has disconnected, or it does not read
        except Exception as error:
            log.debug("live page: %s: %s", type(error).__name__, error)
        finally:
            if connection in self._open:  # else it was dropped for another one
                self._open.remove(connection)
            _close(writer)

    async def drain(self, timeout_s: float) -> None:
        """Wait until everything written has been sent, at most `timeout_s` seconds."""
        waited_s = 0.0
        while waited_s < timeout_s and any(
            each.writer.transport.get_write_buffer_size() for each in self._open
        ):
            await asyncio.sleep(0.02)
            waited_s += 0.02

    async def settle(self) -> None:
        """Wait until `handle` runs for every connection that the listener has accepted."""
        for _ in range(_ROUNDS_TO_HANDLE):
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Close every connection."""
        tasks = dict(self._tasks)
        for task, writer in tasks.items():
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, connection: _Connection, reader: asyncio.StreamReader) -> None:
        writer = connection.writer
        problem = (HTTPStatus.BAD_REQUEST, "Invalid request.")
        request = None
        try:
            text = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _REQUEST_TIMEOUT_S)
            request = parse(text)
        except asyncio.LimitOverrunError:
            problem = (
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"The headers have more than {MAX_HEADER_BYTES} bytes.",
            )
        except TimeoutError:
            problem = (HTTPStatus.REQUEST_TIMEOUT, "The request did not arrive in time.")
        connection.is_waiting = False
        if request is None:
            writer.write(error_response(*problem).to_bytes())
        else:
            await self._answer(request, reader, writer)
        await _send_all(writer)

    def _admit(self, writer: asyncio.StreamWriter) -> _Connection | None:
        """Return the new connection, or None if there are too many."""
        peer = writer.get_extra_info("peername")
        connection = _Connection(writer, str(peer[0]) if isinstance(peer, tuple) and peer else "")
        same = [each for each in self._open if each.address == connection.address]
        if len(same) >= self.most_per_address and not self._drop_one(same):
            return None
        if len(self._open) >= self.most and not self._drop_one(self._open):
            return None
        return connection

    def _drop_one(self, candidates: list[_Connection]) -> bool:
        """Drop the oldest connection that has not sent its request; return whether there was one."""
        now_s = time.monotonic()
        for connection in candidates:
            if connection.is_waiting and now_s - connection.opened_s > _PATIENCE_S:
                self._open.remove(connection)
                connection.writer.transport.abort()
                return True
        return False

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send a 503, and wait a moment: closing with unread input could discard the response."""
        if self._num_refusals >= _MAX_REFUSALS:
            writer.transport.abort()
            return
        self._num_refusals += 1
        try:
            reason = f"The page has {len(self._open)} open connections. Close some, or try again in a moment."
            response = error_response(HTTPStatus.SERVICE_UNAVAILABLE, reason, {"Retry-After": "2"})
            writer.write(response.to_bytes())
            with contextlib.suppress(OSError, TimeoutError, asyncio.LimitOverrunError):
                await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _REFUSAL_S)
        except asyncio.IncompleteReadError:
            pass
        finally:
            self._num_refusals -= 1
            _close(writer)


async def _send_all(writer: asyncio.StreamWriter) -> None:
    """Wait until a response has been sent; raise `TimeoutError` if the client hardly reads."""
    while True:
        unsent = writer.transport.get_write_buffer_size()
        try:
            await asyncio.wait_for(writer.drain(), _SEND_TIMEOUT_S)
            return
        except TimeoutError:
            if unsent - writer.transport.get_write_buffer_size() < _MIN_SENT_BYTES:
                raise


def _close(writer: asyncio.StreamWriter) -> None:
    # `close` would wait for a client that does not read.
    if writer.transport.get_write_buffer_size():
        writer.transport.abort()
    else:
        writer.close()


def _handles_for_clients() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return _MAX_OPEN
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MAX_OPEN
    return max(min(_MAX_OPEN, limit // 4), _MIN_OPEN)
