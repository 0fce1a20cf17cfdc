"""Call the views of a run with every event; a view that raises is removed and training continues."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..events import Event, View
from ..journal import Entry

# Views receive these from the journal's thread: step metrics because tensors are read there, and collections
# because one may happen while a view holds its own lock.
_DEFERRED = ("metrics", "gc")


class ViewDispatcher:
    """Call views with events on the emitting thread; `alert` reports views that fail.

    Views in `ordered` receive every event on the journal's thread, in journal order.
    """

    def __init__(
        self, views: Iterable[View], alert: Callable[[str], object], *, ordered: Iterable[View] = ()
    ) -> None:
        self._views = list(views)
        self._ordered = list(ordered)
        self._alert = alert

    def dispatch(self, event: Event) -> None:
        """Show an event now, unless its kind is deferred."""
        if event.kind not in _DEFERRED:
            self._call(self._views, event)

    def dispatch_batch(self, batch: list[Entry]) -> None:
        """Show a batch of journal entries: all of them to ordered views, deferred kinds to the others."""
        for entry in batch:
            self._call(self._ordered, entry.event)
            if entry.event.kind in _DEFERRED:
                self._call(self._views, entry.event)

    def flush(self) -> None:
        """Wait for the views that have a `flush` method, as sinks behind a queue do."""
        for view in tuple(self._ordered):
            getattr(view, "flush", lambda: None)()

    def close(self) -> None:
        """Close the views that have a `close` method."""
        for view in (*self._views, *self._ordered):
            try:
                getattr(view, "close", lambda: None)()
            except Exception as error:
                self._alert(f"{_name_of(view)} could not be closed: {type(error).__name__}: {error}")

    def _call(self, views: list[View], event: Event) -> None:
        for view in tuple(views):
            try:
                view(event)
            except Exception as error:
                views.remove(view)
                reason = f"{type(error).__name__}: {error}"
                self._alert(f"the view {_name_of(view)} failed and is no longer called: {reason}")


def _name_of(view: View) -> str:
    return str(getattr(view, "__name__", type(view).__name__))
