"""The live page of a run: starts a server on request and sends it the journal's entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flodl.core import log
from flodl.core.errors import MonitorError

from . import validation
from .journal import Entry, Journal

# Calling serve() with its defaults again returns the address.
_DEFAULTS = (3000, "127.0.0.1", None)
# Pages that are open when the run ends, or opened right after, still get to show the end.
_LINGER_S = 5.0


class LivePage:
    """Serve the page of the run that writes `journal`; nothing runs before `serve`."""

    def __init__(self, journal: Journal, *, total_epochs: int, elapsed_s: Callable[[], float]) -> None:
        self._journal = journal
        self._total_epochs = total_epochs
        self._elapsed_s = elapsed_s
        self._server: Any = None
        self._served: tuple[Any, ...] = ()

    @property
    def url(self) -> str | None:
        """The address of the page while it is served."""
        return self._server.url if self._server is not None else None

    def serve(self, port: int, host: str, token: str | None) -> str:
        """Start the server and return the address; the same arguments, or the defaults, return it again."""
        from .server import RunSource, Server

        validation.token(token)
        if self._server is not None and (port, host, token) in (self._served, _DEFAULTS):
            return str(self._server.url)
        if self._server is not None:
            raise MonitorError(f"the page is already served at {self._server.url}. Serve a run only once.")
        self._journal.flush()
        source = RunSource(self._journal, elapsed_s=self._elapsed_s)
        source.total_epochs = self._total_epochs
        self._server = Server([source], last_id=self._journal.last_id, host=host, port=port, token=token)
        self._served = (port, host, token)
        self._journal.subscribe(self._publish)
        self._journal.interval_s = self._server.interval_s
        note = f" (port {port} is in use)" if port not in (0, self._server.port) else ""
        log.msg("  live page: %s%s", self._server.url, note)
        return str(self._server.url)

    def finish(self) -> None:
        """Send everything and close the page a few seconds later."""
        if self._server is not None:
            self._server.flush()
            self._server.close(after_s=_LINGER_S)

    def close(self) -> None:
        """Close the page now."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def _publish(self, batch: list[Entry]) -> None:
        self._server.publish(batch)
        self._journal.interval_s = self._server.interval_s
