"""The starts of a run: each has settings, a duration and an end, and one of them is shown as the state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..journal import Entry, Reader

# A start that recorded none of these has not trained.
_WORK_LINES = ("epoch", "save")
_WORK_TABLES = ("metrics", "progress")


class Start(NamedTuple):
    """One start of a run: its first entry, its end, and the settings that were recorded during it."""

    first: Entry
    end: Entry | None
    described: tuple[Entry, ...]
    next_id: int | None  # the entry with which the next start begins

    @property
    def facts(self) -> dict[str, Any]:
        """The data of the first entry, with what was described later; without the settings."""
        facts = dict(self.first.event.data)
        for entry in self.described:
            facts |= {name: value for name, value in entry.event.data.items() if value}
        facts.pop("config", None)
        return facts

    @property
    def config(self) -> list[dict[str, Any]]:
        """The settings; one that was described later replaces an earlier one with the same path."""
        found: dict[Any, dict[str, Any]] = {}
        for entry in (self.first, *self.described):
            for item in entry.event.data.get("config") or ():
                if isinstance(item, dict):
                    found[str(item.get("path"))] = item
        return list(found.values())

    def duration_s(self, reader: Reader) -> float:
        """Return how long it lasted; if it did not record its end, until its last event."""
        if self.end is not None and (known := self.end.event.data.get("duration_s")) is not None:
            return max(float(known), 0.0)
        last_s = reader.last_time_s(before=self.next_id) if self.end is None else self.end.event.time_s
        return max((last_s or 0.0) - self.first.event.time_s, 0.0)

    def has_trained(self, reader: Reader, rank: int) -> bool:
        """Return whether it recorded an epoch, a step or a save."""
        last_id = float("inf") if self.next_id is None else self.next_id
        lines = reader.entries(_WORK_LINES)
        if any(self.first.id < entry.id < last_id and entry.event.rank == rank for entry in lines):
            return True
        for kind in _WORK_TABLES:
            for table in reader.tables(kind, rank=rank):
                ids = table.rows[:, 0]
                position = int(ids.searchsorted(self.first.id, side="right"))
                if position < len(ids) and ids[position] < last_id:
                    return True
        return False


def starts_of(reader: Reader, rank: int, firsts: Sequence[Entry] | None = None) -> list[Start]:
    """Return the starts of a rank, in order; if it has none, those of the other ranks.

    `firsts` are the `run_start` entries, if the caller has read them already.
    """
    if firsts is None:
        firsts = reader.entries({"run_start"})
    own = [entry for entry in firsts if entry.event.rank == rank]
    ranks = {rank} if own else {entry.event.rank for entry in firsts}
    own = own or list(firsts)
    others = [entry for entry in reader.entries({"run_end", "config"}) if entry.event.rank in ranks]
    found = []
    for first, following in zip(own, [*own[1:], None]):
        next_id = None if following is None else following.id
        inside = [
            entry for entry in others if entry.id > first.id and (next_id is None or entry.id < next_id)
        ]
        ends = [entry for entry in inside if entry.event.kind == "run_end" and entry.event.rank == rank]
        described = tuple(entry for entry in inside if entry.event.kind == "config")
        found.append(Start(first, ends[-1] if ends else None, described, next_id))
    return found


def shown_start(reader: Reader, starts: Sequence[Start], rank: int, *, is_running: bool) -> Start:
    """Return the start whose state is that of the run: the last one, unless it ended before it trained.

    A start that is rejected, for example because its settings do not match, changes nothing: the run is still
    what the start before it left behind.
    """
    for start in reversed(starts):
        is_last = start is starts[-1]
        if (is_last and is_running) or _has_succeeded(start) or start.has_trained(reader, rank):
            return start
    return starts[-1]


def _has_succeeded(start: Start) -> bool:
    return start.end is not None and start.end.event.data.get("status") == "finished"
