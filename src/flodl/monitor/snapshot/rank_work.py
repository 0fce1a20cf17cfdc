"""The ranks of a run over time, from the events of its supervisor."""

from __future__ import annotations

from typing import Any

from ..journal import Reader
from ..ranks import RankHistory

# More than a page can show; of a longer run, only some events are read.
MAX_EVENTS = 1500


def rank_work(reader: Reader, *, max_events: int = MAX_EVENTS) -> dict[str, Any]:
    """Return what each rank did since the last start of the run; empty if it has no ranks."""
    history = RankHistory()
    for entry in reader.entries({"ranks"}, most=max_events):
        history.add(entry.event.data)
    return history.to_dict()
