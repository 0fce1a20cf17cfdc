"""The status of a run: running, lost or ended, and since when."""

from __future__ import annotations

import os
import time
from typing import Any

from ..journal import Entry, Reader
from .process import is_alive

# A run's folder, its journal, or a reader that is already open.
Run = str | os.PathLike[str] | Reader

# A new run writes its start event within a second.
_QUIET_START_S = 3.0
_UNREADABLE = "No line of this journal can be read. The file is damaged or is not a journal."


def status(
    run: Run, *, rank: int = 0, live: bool | None = None, starts: list[Entry] | None = None
) -> dict[str, Any]:
    """Return the status of a run for one rank; `live` is whether it still runs, if the caller knows.

    `starts` are the `run_start` entries, if the caller has read them already.
    """
    reader = Reader.of(run)
    if starts is None:
        starts = reader.entries({"run_start"})
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
        "total_epochs": _to_int(facts.get("total_epochs")),
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


def _to_int(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) else 0
