"""The settings of a run that a later start changed, and those that it set without effect."""

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
    ignored: dict[str, Any]

    def replaces(self, earlier: _Part) -> bool:
        """Return whether an earlier part was trained again as a whole."""
        if earlier.epoch != self.epoch:
            return earlier.epoch > self.epoch
        # Only a run that was resumed inside an epoch has steps before this one.
        return earlier.step is None or self.step is None or self.step <= earlier.step


class Changes(NamedTuple):
    """What later starts of a run changed, by path, and what they set without effect."""

    changed: dict[str, list[dict[str, Any]]]
    ignored: dict[str, list[dict[str, Any]]]


def changed_settings(
    reader: Reader, starts: Sequence[Start], epochs: Sequence[Entry], *, rank: int, started_s: float | None
) -> Changes:
    """Return by path what each start changed, up to the one that is shown, which began at `started_s`.

    A start that has not trained is left out. Of a setting that only one of two starts has, the value of the
    other one is missing; it is left out if they have different versions of flodl, because a newer one may
    record more.
    """
    parts: list[_Part] = []
    for start, used in zip(starts, used_settings(starts)):
        is_shown = start.first.event.time_s == started_s
        settings = {str(item.get("path")): item.get("value") for item in used.config}
        if settings and (is_shown or start.has_trained(reader, rank)):
            step = _first_step(reader, start, rank) if len(starts) > 1 else None
            part = _Part(_epochs_before(start, epochs), step, settings, used.ignored)
            parts = [*(one for one in parts if not part.replaces(one)), part]
        if is_shown:
            break
    found = Changes({}, {})
    for before, part in pairwise(parts):
        was, now = before.settings, part.settings
        for path in _compared(was, now):
            if dumps(now.get(path)) != dumps(was.get(path)):
                values = {name: each[path] for name, each in (("was", was), ("now", now)) if path in each}
                found.changed.setdefault(path, []).append({"epoch": part.epoch, **values})
    for part in parts:
        for path, value in part.ignored.items():
            found.ignored.setdefault(path, []).append({"epoch": part.epoch, "value": value})
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
