"""Everything the page shows about a run, as plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flodl.core.files import read_limited

from ..journal import Entry, Reader
from .history import epoch_with_id, merge_history
from .rank_work import rank_work
from .series import latest_progress, metric_series, rank_summaries, resource_series, steps_before
from .starts import Start, starts_of
from .status import Run, status
from .used_settings import used_settings

VERSION = 1
MAX_POINTS = 2000
_MAX_EVENTS = 500
_LISTED = ("tier", "note", "save", "alert", "run_start", "run_end")
_FREQUENT = ("gc", "sync")
_MAX_PICTURE_BYTES = 1 << 26


def snapshot(
    run: Run, *, rank: int = 0, max_points: int = MAX_POINTS, live: bool | None = None
) -> dict[str, Any]:
    """Return the state of a run for one rank; `live` is whether it still runs, if the caller knows.

    It may contain numbers that are not finite. `journal.dumps` writes them as null, and a `not_finite` field
    next to them says what they were.
    """
    reader = Reader.of(run)
    firsts = reader.entries({"run_start"})
    starts = starts_of(reader, rank, firsts)
    current = status(reader, rank=rank, live=live, starts=starts)
    epochs = [entry for entry in reader.entries({"epoch"}) if entry.event.rank == rank]
    events = reader.entries(_LISTED, last=_MAX_EVENTS) + reader.entries(_FREQUENT, last=_MAX_EVENTS)
    return {
        "version": VERSION,
        "last_id": reader.last_id,
        "rank": rank,
        "status": current,
        "history": _with_last_tables(
            merge_history(
                {**epoch_with_id(entry, current["total_epochs"]), **position}
                for entry, position in zip(epochs, steps_before(reader, epochs, rank=rank))
            )
        ),
        "metrics": metric_series(reader, rank=rank, max_points=max_points),
        "resources": resource_series(reader, rank=rank, max_points=max_points // 4),
        "progress": latest_progress(reader, rank=rank),
        "config": settings_of(starts, current["started_s"]),
        "graph": _latest_data(reader.entries({"graph"})),
        "events": [event_record(entry) for entry in sorted(events)],
        "ranks": rank_summaries(reader, firsts),
        "rank_work": rank_work(reader),
    }


def graph_svg(run: Run) -> str | None:
    """Return the SVG of the architecture, if the run has one."""
    reader = Reader.of(run)
    name = _latest_data(reader.entries({"graph"})).get("path")
    path = reader.path.parent / Path(str(name)).name if name else None
    try:
        return read_limited(path, max_bytes=_MAX_PICTURE_BYTES).decode(errors="replace") if path else None
    except (OSError, ValueError):  # deleted, or a name that is not valid
        return None


def event_record(entry: Entry) -> dict[str, Any]:
    """Return an event as the event list shows it."""
    event = entry.event
    record = {"id": entry.id, "kind": event.kind, "time_s": event.time_s, "rank": event.rank}
    data = {key: value for key, value in event.data.items() if key not in ("config", "versions")}
    return {**data, **record}


def _with_last_tables(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep the tables of the last epoch that has some: the page shows one of each, and they may be large."""
    found = False
    for record in reversed(history):
        if "tables" in record and found:
            del record["tables"]
        found = found or "tables" in record
    return history


def _latest_data(entries: list[Entry]) -> dict[str, Any]:
    return dict(entries[-1].event.data) if entries else {}


def settings_of(starts: list[Start], started_s: float | None) -> list[dict[str, Any]]:
    """Return the settings of the start that is shown, or of the last one before it that has any."""
    shown = max((at for at, start in enumerate(starts) if start.first.event.time_s == started_s), default=-1)
    used = used_settings(starts[: shown + 1])
    return next((each.config for each in reversed(used) if each.config), [])
