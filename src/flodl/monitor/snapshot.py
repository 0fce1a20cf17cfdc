"""A run as it stands: everything the page shows, as plain data, read from the journal."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from . import not_finite
from .epochs import epoch_record, history_of
from .journal import Entry, Reader
from .series import latest_place, metric_lines, ranks_of, resource_lines
from .writer_process import is_alive

# A run by its folder or journal, or as somebody has opened it.
Run = str | os.PathLike[str] | Reader

VERSION = 1
MOST_POINTS = 2000
_MOST_EVENTS = 500
# A run that has just begun tells its start within a second.
_QUIET_START_S = 3.0
_UNREADABLE = "Nothing in this journal can be read: it is damaged, or it is something else."
_TOLD = ("tier", "save", "alert", "run_start", "run_end")
_FREQUENT = ("gc", "sync")


def snapshot(run: Run, *, rank: int = 0, most: int = MOST_POINTS, live: bool | None = None) -> dict[str, Any]:
    """Give the state of a run for one rank; `live` says whether it still runs, where the caller knows.

    Numbers that are not finite are among it; `journal.lines.dumps` writes them as null, and `not_finite`
    beside them says what they were.
    """
    reader = Reader.of(run)
    starts = reader.entries({"run_start"})
    standing = _status(reader, starts, rank=rank, live=live)
    epochs = [entry for entry in reader.entries({"epoch"}) if entry.event.rank == rank]
    told = reader.entries(_TOLD, most=_MOST_EVENTS) + reader.entries(_FREQUENT, most=_MOST_EVENTS)
    return {
        "version": VERSION,
        "last_id": reader.last_id,
        "rank": rank,
        "status": standing,
        "history": history_of(told_epoch(entry, standing["total_epochs"]) for entry in epochs),
        "metrics": metric_lines(reader, rank=rank, most=most),
        "resources": resource_lines(reader, rank=rank, most=most // 4),
        "progress": latest_place(reader, rank=rank),
        "config": _config(starts),
        "graph": _latest(reader.entries({"graph"})),
        "events": [event_record(entry) for entry in sorted(told)],
        "ranks": ranks_of(reader, starts),
    }


def status(run: Run, *, rank: int = 0, live: bool | None = None) -> dict[str, Any]:
    """Give only how a run stands, which is quick."""
    reader = Reader.of(run)
    return _status(reader, reader.entries({"run_start"}), rank=rank, live=live)


def picture(run: Run) -> str | None:
    """Give the SVG of the architecture, if the run has one."""
    reader = Reader.of(run)
    name = _latest(reader.entries({"graph"})).get("path")
    path = reader.path.parent / Path(str(name)).name if name else None
    return path.read_text(encoding="utf-8") if path is not None and path.is_file() else None


def told_epoch(entry: Entry, total_epochs: int) -> dict[str, Any]:
    """Give an epoch as the page and `/api/history` show it, with its number in the journal."""
    record = epoch_record(entry.event, total_epochs)
    return {"id": entry.id, **record, **not_finite.by_name(record["metrics"])}


def event_record(entry: Entry) -> dict[str, Any]:
    """Give an event as the lane of events shows it."""
    event = entry.event
    record = {"id": entry.id, "kind": event.kind, "time_s": event.time_s, "rank": event.rank}
    data = {key: value for key, value in event.data.items() if key not in ("config", "versions")}
    return {**data, **record}


def _latest(entries: list[Entry]) -> dict[str, Any]:
    return dict(entries[-1].event.data) if entries else {}


def _config(starts: list[Entry]) -> list[dict[str, Any]]:
    for entry in reversed(starts):
        config = entry.event.data.get("config")
        if config:
            return [dict(item) for item in config if isinstance(item, dict)]
    return []


def _status(reader: Reader, starts: list[Entry], *, rank: int, live: bool | None) -> dict[str, Any]:
    own = [entry for entry in starts if entry.event.rank == rank] or starts
    start = own[-1] if own else None
    facts = dict(start.event.data) if start else {}
    facts.pop("config", None)
    ends = [
        entry
        for entry in reader.entries({"run_end"})
        if entry.event.rank == rank and (start is None or entry.id > start.id)
    ]
    written = reader.path.stat()
    state: dict[str, Any] = {
        "name": str(facts.get("name") or reader.path.parent.resolve().name),
        "total_epochs": _whole(facts.get("total_epochs")),
        "started_s": start.event.time_s if start else None,
        "num_starts": len(own),
        "last_s": reader.last_time_s() or written.st_mtime,
        "now_s": time.time(),
        "followed": live is None,
        "facts": facts,
    }
    if ends:
        end = ends[-1].event
        return {
            **state,
            "state": end.data.get("status", "finished"),
            "message": end.data.get("message"),
            "ended_s": end.time_s,
            "elapsed_s": end.data.get("duration_s"),
        }
    if start is None and not live and state["now_s"] - written.st_mtime > _QUIET_START_S:
        unreadable = None if reader.last_id or not written.st_size else _UNREADABLE
        return {**state, "state": "empty", "message": unreadable}
    running = live
    if running is None:
        running = is_alive(facts, started_s=state["started_s"], last_s=written.st_mtime)
    if running or start is None:
        return {**state, "state": "running" if running else "lost"}
    return {**state, "state": "lost", "elapsed_s": max(state["last_s"] - start.event.time_s, 0.0)}


def _whole(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) else 0
