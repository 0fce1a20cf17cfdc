"""Those who are called with every event: one that fails is called no more, and training goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .events import Event, View
from .journal import Entry

# Views see these from the journal's thread: metrics within an epoch once they are numbers, and collections
# because one may come while a view holds a lock of its own.
_TOLD_LATE = ("metrics", "gc")


class Views:
    """Call views with events, from the thread that tells them; `alert` hears of those that fail.

    Those `in_order` get every event from the journal's thread, as the journal has them.
    """

    def __init__(
        self, views: Iterable[View], alert: Callable[[str], object], *, in_order: Iterable[View] = ()
    ) -> None:
        self._views = list(views)
        self._in_order = list(in_order)
        self._alert = alert

    def tell(self, event: Event) -> None:
        """Show an event at once, but for the kinds that come later."""
        if event.kind not in _TOLD_LATE:
            self._call(self._views, event)

    def tell_late(self, batch: list[Entry]) -> None:
        """Show what had to wait for the journal."""
        for entry in batch:
            self._call(self._in_order, entry.event)
            if entry.event.kind in _TOLD_LATE:
                self._call(self._views, entry.event)

    def close(self) -> None:
        """Close those that can be closed."""
        for view in (*self._views, *self._in_order):
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
