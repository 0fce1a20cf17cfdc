"""Journal entries as server-sent events; frequent kinds are merged into one `tick`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..journal import Entry, dumps
from ..snapshot import epoch_with_id, event_record, non_finite

_MERGED = ("metrics", "progress", "resources")
_MAX_POINTS_PER_TICK = 40


def message(name: str, data: Any, id: int) -> bytes:
    """Return one server-sent event.

    >>> message("epoch", {"epoch": 1}, 7)
    b'id: 7\\nevent: epoch\\ndata: {"epoch":1}\\n\\n'
    """
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (id, name.encode(), dumps(data))


def frame(entries: Iterable[Entry], *, rank: int, total_epochs: int) -> bytes:
    """Return the messages of some entries, in order, for a client that follows one rank.

    Each message carries the number of its last entry, so a client that reconnects with the last number it saw
    receives exactly the rest.
    """
    parts: list[bytes] = []
    tick = Tick()
    for entry in entries:
        kind = entry.event.kind
        if kind in _MERGED:
            if entry.event.rank == rank:
                tick.add(entry)
            continue
        parts += tick.messages()
        tick = Tick()
        if kind == "epoch":
            if entry.event.rank == rank:
                parts.append(message("epoch", epoch_with_id(entry, total_epochs), entry.id))
        elif kind == "graph":
            parts.append(message("graph", entry.event.data, entry.id))
        elif kind == "ranks":
            parts.append(message("ranks", entry.event.data, entry.id))
        elif kind == "config":
            parts.append(message("config", {**entry.event.data, "rank": entry.event.rank}, entry.id))
        else:
            parts.append(message("told", event_record(entry), entry.id))
        if kind == "run_end" and entry.event.rank == rank:
            parts.append(
                message("complete", {"status": entry.event.data.get("status", "finished")}, entry.id)
            )
    parts += tick.messages()
    return b"".join(parts)


class Tick:
    """The frequent events since the last message: all points, the latest progress and reading."""

    def __init__(self) -> None:
        self._last_id = 0
        self._points: dict[str, list[tuple[Any, float]]] = {}
        self._data: dict[str, Any] = {}

    def add(self, entry: Entry) -> None:
        """Add an entry of a frequent kind."""
        self._last_id = entry.id
        data = entry.event.data
        if entry.event.kind == "metrics":
            step = data.get("step")
            for name, value in data.get("metrics", {}).items():
                if isinstance(value, int | float):  # a foreign journal may contain anything
                    self._points.setdefault(name, []).append((step, value))
        else:
            self._data[entry.event.kind] = {**data, "time_s": entry.event.time_s}

    def messages(self) -> list[bytes]:
        """Return the merged message, or an empty list if nothing was added."""
        if not self._last_id:
            return []
        points = {name: _downsample(line) for name, line in self._points.items()}
        data = {**self._data, "points": points} if points else self._data
        return [message("tick", data, self._last_id)]


def _downsample(line: list[tuple[Any, float]]) -> Mapping[str, Any]:
    """Keep the extremes of each interval if there are more points than a chart can show.

    >>> _downsample([(step, math.nan if step == 50 else step % 7) for step in range(100)])["not_finite"]
    {'nan': [...]}
    """
    if len(line) > _MAX_POINTS_PER_TICK:
        width = -(-len(line) // (_MAX_POINTS_PER_TICK // 2))
        kept: list[tuple[Any, float]] = []
        for start in range(0, len(line), width):
            kept += _extremes(line[start : start + width])
        line = kept
    values = [y for _, y in line]
    return {"x": [x for x, _ in line], "y": values, **non_finite.by_index(values)}


def _extremes(points: list[tuple[Any, float]]) -> list[tuple[Any, float]]:
    """Return the minimum, the maximum and the first NaN of some points, in their order."""
    is_nan = [math.isnan(value) for _, value in points]
    known = [index for index, missing in enumerate(is_nan) if not missing]
    kept = {is_nan.index(True)} if len(known) < len(points) else set()
    if known:
        kept |= {choose(known, key=lambda index: points[index][1]) for choose in (min, max)}
    return [points[index] for index in sorted(kept)]
