"""A small web server in its own thread, for as long as the run lasts."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self
from urllib.parse import quote

from flodl.core import log
from flodl.core.errors import MonitorError

from .. import validation
from ..fork_safety import register_after_fork
from ..journal import Entry
from .connections import Connections
from .http import MAX_HEADER_BYTES, TOKEN_PREFIX, is_loopback
from .routes import Routes
from .run_list import RunList
from .source import RunSource
from .subscribers import Subscribers

_MAX_PORTS_TRIED = 50
_KEEP_ALIVE_S = 15.0
# Fewer than one in a hundred steps of a millisecond should coincide with a batch.
_INTERVAL_S, _MAX_INTERVAL_S, _FEW_SUBSCRIBERS = 0.2, 0.8, 4
_POLL_INTERVAL_S = 0.5
_MAX_READERS = 4


class Server:
    """Serve the page of one run, or of several runs for comparison.

    The default address is the loopback address; on any other, a token is required and generated. If the port
    is in use, the next free one is taken. `poll` returns new entries of a run that another process writes.
    """

    def __init__(
        self,
        runs: Sequence[RunSource],
        *,
        last_id: int = 0,
        poll: Callable[[], list[Entry]] | None = None,
        host: str = "127.0.0.1",
        port: int = 3000,
        token: str | None = None,
    ) -> None:
        self.host = host
        self._socket = _listen(host, validation.port(port))
        self.port: int = self._socket.getsockname()[1]
        self.token = token or (None if is_loopback(host) else secrets.token_urlsafe(16))
        self._poll = poll
        listed = runs if isinstance(runs, RunList) else RunList(runs)
        self._subscribers = Subscribers(
            last_id=last_id, total_epochs=lambda: listed[0].total_epochs if listed else 0
        )
        self._connections = Connections(lambda *request: routes.answer(*request))
        routes = Routes(
            listed,
            self._subscribers,
            host=host,
            port=self.port,
            token=self.token,
            max_streams=max(self._connections.most // 2, 1),  # the other half is for requests
        )
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._done = threading.Event()
        register_after_fork(self)
        self._thread = threading.Thread(target=self._run, name="flodl-server", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL to open, with the token if there is one; paths such as `api/history` can be appended."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        if self.host in ("0.0.0.0", "::", ""):
            shown = socket.gethostname()
        return f"http://{shown}:{self.port}/" + (
            f"{TOKEN_PREFIX}{quote(self.token, safe='')}/" if self.token else ""
        )

    @property
    def interval_s(self) -> float:
        """The interval between batches; it grows with the subscribers, so that training stays fast."""
        scaled_s = _INTERVAL_S * len(self._subscribers) / _FEW_SUBSCRIBERS
        return min(max(_INTERVAL_S, scaled_s), _MAX_INTERVAL_S)

    def publish(self, batch: list[Entry]) -> None:
        """Send a batch to the subscribers, from any thread and without waiting."""
        if not self._done.is_set():
            self._call_soon(self._subscribers.publish, batch, self._subscribers.encode(batch))

    def flush(self, timeout_s: float = 1.0) -> None:
        """Wait until everything published has been written to the connections."""
        written = threading.Event()
        self._call_soon(written.set)
        written.wait(timeout_s)

    def close(self, *, after_s: float = 0.0) -> None:
        """Stop listening and end every stream, now or after some seconds; pending data is sent first."""
        if after_s > 0:
            self._call_soon(self._loop.call_later, after_s, self._stopping.set)
            return
        self._call_soon(self._stopping.set)
        self._done.wait(5.0)

    def after_fork_in_child(self) -> None:
        """Close the socket: this is a copy in a forked child, which would keep the port in use."""
        self._done.set()
        if self._socket.fileno() >= 0:  # not closed before the fork
            os.close(self._socket.detach())

    def wait(self) -> None:
        """Wait until the server is closed."""
        while not self._done.wait(0.2):
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call_soon(self, function: Callable[..., object], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function, *args)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(_log_problem)
        # Requests that read the journal compete with training for the CPU.
        self._loop.set_default_executor(ThreadPoolExecutor(_MAX_READERS, "flodl-server"))
        try:
            self._loop.run_until_complete(self._serve())
        except Exception as error:
            log.warn("the live page stopped: %s: %s", type(error).__name__, error)
        finally:
            self._done.set()
            self._loop.close()

    async def _serve(self) -> None:
        listener = await asyncio.start_server(
            self._connections.handle, sock=self._socket, limit=MAX_HEADER_BYTES
        )
        tasks = [asyncio.create_task(self._keep_alive())]
        if self._poll is not None:
            tasks.append(asyncio.create_task(self._publish_new(self._poll)))
        try:
            await self._stopping.wait()
            await self._connections.drain(0.5)
        finally:
            # Connections that are accepted while the listener closes would stay open: asyncio forgets them.
            with contextlib.suppress(NotImplementedError):  # Windows
                self._loop.remove_reader(self._socket.fileno())
            await self._connections.settle()
            listener.close()
            for task in tasks:
                task.cancel()
            await self._connections.close()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._loop.shutdown_default_executor()

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(_KEEP_ALIVE_S)
            self._subscribers.keep_alive()

    async def _publish_new(self, poll: Callable[[], list[Entry]]) -> None:
        while True:
            await asyncio.sleep(_POLL_INTERVAL_S)
            try:
                batch = await asyncio.to_thread(poll)
                if batch:
                    self._subscribers.publish(batch, self._subscribers.encode(batch))
            except Exception as error:  # the journal may be moved or replaced at any time
                log.debug("live page: the journal: %s: %s", type(error).__name__, error)


def _log_problem(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log a problem of a connection, which must not print a traceback into the output of a run."""
    log.debug("live page: %s: %s", context.get("message"), context.get("exception"))


def _listen(host: str, port: int) -> socket.socket:
    """Listen on the first free port from `port` on; 0 takes any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in [port] if port == 0 else range(port, min(port + _MAX_PORTS_TRIED, 65536)):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
            listener.listen(64)
            listener.setblocking(False)
            return listener
        except OSError as error:
            listener.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise MonitorError(
                    f"cannot serve the page at {host!r}: {error.strerror}. "
                    "Pass an address of this machine, such as 127.0.0.1."
                ) from None
    last = min(port + _MAX_PORTS_TRIED, 65536) - 1
    raise MonitorError(
        f"the ports {port} to {last} are all in use. Pass another port, or 0 for any free one."
    )
