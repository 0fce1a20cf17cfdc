"""The status of a run: running, lost or ended, and since when."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..journal import Entry, Reader
from ..journal.writer_lock import is_unlocked
from .process import is_alive, is_local
from .starts import Start, shown_start, starts_of

# A run's folder, its journal, or a reader that is already open.
Run = str | os.PathLike[str] | Reader

# A new run writes its start event within a second.
_QUIET_START_S = 3.0
_UNREADABLE = "No line of this journal can be read. The file is damaged or is not a journal."


def status(
    run: Run, *, rank: int = 0, live: bool | None = None, starts: list[Start] | None = None
) -> dict[str, Any]:
    """Return the status of a run for one rank; `live` is whether it still runs, if the caller knows.

    `starts` are the starts of the run, if the caller has read them already. The elapsed time is the total
    over all of them; of a start that still runs, only `started_s` is known, and `earlier_s` is the rest.
    """
    reader = Reader.of(run)
    if starts is None:
        starts = starts_of(reader, rank)
    written = reader.path.stat()
    folder = reader.path.parent.resolve().name
    state: dict[str, Any] = {
        "name": folder,
        "folder": folder,
        "total_epochs": 0,
        "started_s": None,
        "num_starts": len(starts),
        "earlier_s": 0.0,
        "last_s": reader.last_time_s() or written.st_mtime,
        "now_s": time.time(),
        "followed": live is None,
        "facts": {},
    }
    if not starts:
        return {**state, **_without_start(reader, state, live=live, rank=rank)}
    last = starts[-1]
    running = last.end is None and (_is_alive(last, reader.path) if live is None else live)
    shown = shown_start(reader, starts, rank, is_running=running)
    state |= {
        "name": _name(shown.facts, folder) if live is None else str(shown.facts.get("name") or folder),
        "total_epochs": _to_int(shown.facts.get("total_epochs")),
        "started_s": shown.first.event.time_s,
        "facts": shown.facts,
    }
    durations_s = [start.duration_s(reader) for start in starts if not (running and start is last)]
    if running:
        return {**state, "state": "running", "earlier_s": sum(durations_s)}
    return {**state, **_end_of(shown), "elapsed_s": sum(durations_s), **_refused(shown, last)}


def _without_start(reader: Reader, state: dict[str, Any], *, live: bool | None, rank: int) -> dict[str, Any]:
    """Return the state of a journal without a start: not yet written, damaged or from another program."""
    written = reader.path.stat()
    ends = [entry for entry in reader.entries({"run_end"}) if entry.event.rank == rank]
    if ends:
        return {**_ended(ends[-1]), "elapsed_s": ends[-1].event.data.get("duration_s")}
    if not live and state["now_s"] - written.st_mtime > _QUIET_START_S:
        unreadable = None if reader.last_id or not written.st_size else _UNREADABLE
        return {"state": "empty", "message": unreadable}
    if live is None:
        live = is_alive({}, started_s=None, last_s=written.st_mtime)
    return {"state": "running" if live else "lost"}


def _is_alive(start: Start, journal: Path) -> bool:
    """Return whether the process of a start still runs and writes the journal."""
    facts, written_s = start.first.event.data, journal.stat().st_mtime
    if not is_alive(facts, started_s=start.first.event.time_s, last_s=written_s):
        return False
    # A process may outlive its run, as that of a notebook does. It has then released the journal, even if the
    # line with the end was lost.
    return not (is_local(facts) and is_unlocked(journal))


def _end_of(start: Start) -> dict[str, Any]:
    return {"state": "lost"} if start.end is None else _ended(start.end)


def _ended(end: Entry) -> dict[str, Any]:
    data = end.event.data
    return {
        "state": data.get("status", "finished"),
        "message": data.get("message"),
        "ended_s": end.event.time_s,
    }


def _refused(shown: Start, last: Start) -> dict[str, Any]:
    """Describe the last start, if it ended before it trained and the state is that of an earlier one."""
    if shown is last:
        return {}
    return {"refused": {"time_s": last.first.event.time_s, **_end_of(last)}}


def _name(facts: Mapping[str, Any], folder: str) -> str:
    """Return the recorded name, or that of the folder if it was renamed since the start.

    >>> [_name({"name": "digits", "folder": "first"}, folder) for folder in ("first", "best")]
    ['digits', 'best']
    """
    is_renamed = facts.get("folder", folder) != folder
    return folder if is_renamed else str(facts.get("name") or folder)


def _to_int(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) else 0
