"""The epochs of a run as people read them: counted from 1, the last word on each, with what is left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .events import Event


def epoch_record(event: Event, total_epochs: int) -> dict[str, Any]:
    """Give an epoch as the page and `/api/history` show it."""
    data = event.data
    return {
        "epoch": int(data.get("epoch", 0)) + 1,
        "total": total_epochs,
        "duration": data.get("duration_s"),
        "eta": data.get("eta_s"),
        "time_s": event.time_s,
        "metrics": dict(data.get("metrics", {})),
    }


def history_of(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Put epochs in order and keep the last word on each: a resumed run may pass one twice.

    >>> passed = [{"epoch": 2, "id": 1}, {"epoch": 1, "id": 2}, {"epoch": 2, "id": 3}]
    >>> [record["id"] for record in history_of(passed)]
    [2, 3]
    """
    latest = {record["epoch"]: dict(record) for record in records}
    return [latest[epoch] for epoch in sorted(latest)]
