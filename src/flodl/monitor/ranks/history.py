"""The course of a run on several ranks, from its `ranks` events; memory is bounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .slices import Slice, SyncMark, thin, thin_points, thin_syncs

# For all ranks together, and for one of them.
MAX_SLICES, MIN_SLICES = 24_000, 200
_MAX_SYNCS = 2_000
_MAX_POINTS = 1_000
_TOO_LARGE = 2.0**60
_SECONDS = ("train_s", "reduce_s", "wait_s")
_TEXTS = ("device", "host", "state", "lost")
_NUMBERS = (
    *_SECONDS,
    "pause_s",
    "updates",
    "samples",
    "num_bytes",
    "batches",
    "speed",
    "since_s",
    "seen_s",
    "joined_s",
    "ended_s",
)

Row = dict[str, Any]
Line = list[tuple[float, float]]


class RankHistory:
    """Adds up events: the last report, and for each rank its slices, its pace and its speed over time.

    An event has the totals so far, and the slices since the event before. If events in between are missing,
    the totals give one slice for all of them. The events of a new start replace those of earlier ones.

    >>> history = RankHistory()
    >>> row = {"rank": 0, "device": "cpu", "since_s": 12.0, "train_s": 1.5, "wait_s": 0.5}
    >>> history.add({"start_s": 10.0, "number": 0, "ranks": [row], "slices": {"0": [[10, 12, 1.5, 0, 0.5]]}})
    >>> history.slices
    {0: [(10.0, 12.0, 1.5, 0.0, 0.5)]}
    """

    def __init__(self, *, max_slices: int = MAX_SLICES) -> None:
        self._max_slices = max_slices
        self._clear()

    def _clear(self) -> None:
        self.report: dict[str, Any] = {}
        self.rows: dict[int, Row] = {}
        self.slices: dict[int, list[Slice]] = {}
        self.syncs: list[SyncMark] = []
        self.pace: dict[int, Line] = {}
        self.speed: dict[int, Line] = {}
        self._number = -1

    def __bool__(self) -> bool:
        return bool(self.rows)

    def add(self, update: Mapping[str, Any]) -> None:
        """Add an event. It may come from a damaged journal, so what is not valid is left out."""
        start_s, number = _number(update.get("start_s")), _number(update.get("number"))
        if start_s != self.report.get("start_s") or number <= self._number:
            self._clear()
        has_all = number == self._number + 1
        syncs_before = _number(_totals(self.report).get("syncs"))
        self._number = int(number)
        self.report = {
            "start_s": start_s,
            "time_s": _number(update.get("time_s")),
            "policy": str(update.get("policy", "")),
            "totals": _totals(update),
        }
        rows = update.get("ranks")
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict) and type(row.get("rank")) is int:
                self._add_row(_clean(row), update, has_all=has_all)
        if has_all:
            self.syncs += [(time_s, int(count)) for time_s, count in _pairs(update.get("syncs"))]
        elif (count := int(_number(_totals(update).get("syncs")) - syncs_before)) > 0:
            self.syncs.append((self.report["time_s"], count))
        self.syncs = thin_syncs(self.syncs, _MAX_SYNCS)

    def _add_row(self, row: Row, update: Mapping[str, Any], *, has_all: bool) -> None:
        rank, before = row["rank"], self.rows.get(row["rank"])
        self.rows[rank] = row
        known = self.slices.setdefault(rank, [])
        pace, speed = self.pace.setdefault(rank, []), self.speed.setdefault(rank, [])
        if has_all or before is None:
            known += _slices(_of(update.get("slices"), rank))
            pace += _pairs(_of(update.get("pace"), rank))
        else:
            start_s, end_s = before["since_s"], row["since_s"]
            spent = [max(row[name] - before[name], 0.0) for name in _SECONDS]
            if end_s > start_s:
                known.append((start_s, end_s, spent[0], spent[1], spent[2]))
            if row["batches"]:
                pace.append((self.report["time_s"], row["batches"]))
        if row["speed"]:
            speed.append((row["since_s"], row["speed"]))
        share = max(self._max_slices // len(self.rows), MIN_SLICES)
        self.slices[rank] = thin(known, share)
        self.pace[rank] = thin_points(pace, _MAX_POINTS)
        self.speed[rank] = thin_points(speed, _MAX_POINTS)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data; empty if no rank has reported."""
        if not self.rows:
            return {}
        return {
            **self.report,
            "number": self._number,
            "ranks": [self.rows[rank] for rank in sorted(self.rows)],
            "slices": {str(rank): [list(each) for each in found] for rank, found in self.slices.items()},
            "syncs": [list(mark) for mark in self.syncs],
            "pace": {str(rank): [list(point) for point in line] for rank, line in self.pace.items()},
            "speed": {str(rank): [list(point) for point in line] for rank, line in self.speed.items()},
        }


def _totals(update: Mapping[str, Any]) -> dict[str, Any]:
    found = update.get("totals")
    if not isinstance(found, dict):
        return {}
    totals: dict[str, Any] = {name: _number(found.get(name)) for name in ("syncs", "samples", "num_bytes")}
    totals["link"] = str(found.get("link") or "")
    if isinstance(divergence := found.get("divergence"), int | float):
        totals["divergence"] = _number(divergence)
    if isinstance(coverage := found.get("coverage"), dict):
        names = ("num_samples", "epochs", "partial", "missing", "repeated")
        totals["coverage"] = {name: _number(coverage.get(name)) for name in names}
    return totals


def _clean(row: Mapping[str, Any]) -> Row:
    texts = {name: str(row.get(name) or "") for name in _TEXTS}
    return {"rank": row["rank"], **texts, **{name: _number(row.get(name)) for name in _NUMBERS}}


def _number(value: Any) -> float:
    """Return a finite number, 0 for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) < _TOO_LARGE else 0


def _of(found: Any, rank: int) -> Any:
    return found.get(str(rank)) if isinstance(found, dict) else None


def _slices(found: Any) -> list[Slice]:
    rows = [each for each in found if _is_row(each, 5)] if isinstance(found, list) else []
    return [(float(a), float(b), float(c), float(d), float(e)) for a, b, c, d, e in rows if b >= a]


def _pairs(found: Any) -> list[tuple[float, float]]:
    rows = [each for each in found if _is_row(each, 2)] if isinstance(found, list) else []
    return [(float(a), float(b)) for a, b in rows]


def _is_row(value: Any, length: int) -> bool:
    if not isinstance(value, list | tuple) or len(value) != length:
        return False
    return all(type(each) in (int, float) and abs(each) < _TOO_LARGE for each in value)
