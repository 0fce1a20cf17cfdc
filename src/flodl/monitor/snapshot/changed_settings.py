"""The settings of a run that a later start changed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from ..journal import Entry, Reader, dumps
from .starts import Start
from .used_settings import used_settings

# More epochs do not change what was trained before, and a run continues with its own random state.
_NOT_COMPARED = frozenset({"epochs", "torch.initial_seed"})
_VERSION = "versions.flodl"


class _Part(NamedTuple):
    """What one start has trained: from which epoch and step on, and with which settings."""

    epoch: int
    step: float | None
    settings: dict[str, Any]

    def replaces(self, earlier: _Part) -> bool:
        """Return whether an earlier part was trained again as a whole."""
        if earlier.epoch != self.epoch:
            return earlier.epoch > self.epoch
        # Only a run that was resumed inside an epoch has steps before this one.
        return earlier.step is None or self.step is None or self.step <= earlier.step


def changed_settings(
    reader: Reader, starts: Sequence[Start], epochs: Sequence[Entry], *, rank: int, started_s: float | None
) -> dict[str, list[dict[str, Any]]]:
    """Return by path what each start changed, up to the one that is shown, which began at `started_s`.

    A start that has not trained is left out. A setting that only one of two starts has is None in the other;
    it is left out if they have different versions of flodl, because a newer one may record more.
    """
    parts: list[_Part] = []
    for start, config in zip(starts, used_settings(starts)) if len(starts) > 1 else ():
        is_shown = start.first.event.time_s == started_s
        settings = {str(item.get("path")): item.get("value") for item in config}
        if settings and (is_shown or start.has_trained(reader, rank)):
            part = _Part(_epochs_before(start, epochs), _first_step(reader, start, rank), settings)
            parts = [*(one for one in parts if not part.replaces(one)), part]
        if is_shown:
            break
    found: dict[str, list[dict[str, Any]]] = {}
    for before, part in pairwise(parts):
        was, now = before.settings, part.settings
        for path in _compared(was, now):
            if dumps(now.get(path)) != dumps(was.get(path)):
                change = {"epoch": part.epoch, "was": was.get(path), "now": now.get(path)}
                found.setdefault(path, []).append(change)
    return found


def _compared(was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return which settings of two starts are compared."""
    has_same_version = was.get(_VERSION) == now.get(_VERSION)
    paths = dict.fromkeys([*now, *was]) if has_same_version else [path for path in now if path in was]
    return [path for path in paths if path not in _NOT_COMPARED]


def _epochs_before(start: Start, epochs: Sequence[Entry]) -> int:
    """Return how many epochs were done when a start began."""
    later = next((entry for entry in epochs if entry.id > start.first.id), None)
    if later is not None:
        return int(later.event.data.get("epoch", 0))
    return int(epochs[-1].event.data.get("epoch", 0)) + 1 if epochs else 0


def _first_step(reader: Reader, start: Start, rank: int) -> float | None:
    """Return the first step that a start recorded with metrics."""
    found = []
    for table in reader.tables("metrics", rank=rank):
        ids = table.rows[:, 0]
        position = int(ids.searchsorted(start.first.id, side="right"))
        is_inside = position < len(ids) and (start.next_id is None or ids[position] < start.next_id)
        if is_inside and "step" in table.header.columns:
            found.append(float(table.rows[position, table.header.columns.index("step")]))
    return min(found, default=None)
