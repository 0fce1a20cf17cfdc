"""The journal of a coordinator: events as JSON lines, from which a restarted supervisor continues."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from flodl.core import DistributedError

from .coordinator import Coordinator
from .events import Arrived, Event, Failed, Joined, Leaving, Lost, Reduced, Tick
from .settings import CoordinatorSettings

_EVENTS: dict[str, type[Any]] = {
    each.__name__: each for each in (Arrived, Failed, Joined, Leaving, Lost, Reduced, Tick)
}
_FIELDS: dict[str, tuple[str, ...]] = {name: each.__match_args__ for name, each in _EVENTS.items()}


def to_journal(entry: Coordinator | Event, now_ms: float = 0.0) -> str:
    """Return a line for an event, to be written before it is handled, or for the state of a coordinator.

    >>> to_journal(Lost(3, "its process ended"), 1500.0)
    '["Lost", 1500.0, 3, "its process ended"]'
    """
    if isinstance(entry, Coordinator):
        return json.dumps(["State", entry.state()])
    name = type(entry).__name__
    return json.dumps([name, now_ms, *(getattr(entry, field) for field in _FIELDS[name])])


def from_journal(lines: Iterable[str], settings: CoordinatorSettings | None = None) -> Coordinator:
    """Return the coordinator that wrote the lines: the last state, and the events after it.

    A last line that is cut off, because the supervisor was killed while writing it, is ignored.
    """
    entries = _entries([line for line in lines if line.strip()])
    last = max((index for index, entry in enumerate(entries) if entry[0] == "State"), default=None)
    if last is None:
        raise DistributedError(
            "the journal has no state of a coordinator. Write to_journal(coordinator) first."
        )
    coordinator = Coordinator.from_state(entries[last][1], settings)
    for name, now_ms, *values in entries[last + 1 :]:
        coordinator.handle(now_ms, _EVENTS[name](*(tuple(v) if isinstance(v, list) else v for v in values)))
    return coordinator


def _entries(lines: list[str]) -> list[list[Any]]:
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            if not isinstance(entry, list) or entry[0] not in (*_EVENTS, "State"):
                raise ValueError("not an entry")
        except (ValueError, IndexError, TypeError) as error:
            if number == len(lines):
                break
            raise DistributedError(
                f"line {number} of {len(lines)} of the journal is damaged: {line[:60]!r}. "
                "Resume from the last save point instead."
            ) from error
        entries.append(entry)
    return entries
