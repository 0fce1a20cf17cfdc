"""Epochs as users read them: numbered from 1, in order, with repeated epochs merged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..events import Event
from ..journal import Entry
from . import non_finite


def epoch_record(event: Event, total_epochs: int) -> dict[str, Any]:
    """Return an epoch as `Monitor.history` shows it."""
    data = event.data
    return {
        "epoch": int(data.get("epoch", 0)) + 1,
        "total": total_epochs,
        "duration": data.get("duration_s"),
        "eta": data.get("eta_s"),
        "time_s": event.time_s,
        "metrics": dict(data.get("metrics", {})),
        **({"tables": data["tables"]} if data.get("tables") else {}),
    }


def epoch_with_id(entry: Entry, total_epochs: int) -> dict[str, Any]:
    """Return an epoch as the page and `/api/history` show it, with its number in the journal."""
    record = epoch_record(entry.event, total_epochs)
    return {"id": entry.id, **record, **non_finite.by_name(record["metrics"])}


def merge_history(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sort epochs, and let a repeated epoch replace its earlier version and all epochs after it.

    >>> seen = [{"epoch": 1, "id": 1}, {"epoch": 2, "id": 2}, {"epoch": 3, "id": 3}, {"epoch": 2, "id": 4}]
    >>> [record["id"] for record in merge_history(seen)]
    [1, 4]
    """
    latest: dict[int, dict[str, Any]] = {}
    highest = -1
    for record in records:
        epoch = record["epoch"]
        if epoch < highest and epoch in latest:
            latest = {kept: latest[kept] for kept in latest if kept < epoch}
            highest = epoch
        highest = max(highest, epoch)
        latest[epoch] = dict(record)
    return [latest[epoch] for epoch in sorted(latest)]
