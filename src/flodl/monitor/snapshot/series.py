"""Metrics and hardware readings as lines to draw, reduced to what a page can show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..journal import Entry, Reader, Table
from . import non_finite

Series = dict[str, dict[str, Any]]
Array = Any  # of numpy, which is imported when it is needed


def metric_series(
    reader: Reader,
    *,
    rank: int,
    max_points: int,
    start: float | None = None,
    end: float | None = None,
    names: frozenset[str] | None = None,
) -> Series:
    """Return the step metrics as {name: {x: steps, y: values}}; `y` may contain NaN."""
    return {
        name: _metric_line(x, y, max_points=max_points, start=start, end=end)
        for name, (x, y) in step_arrays(reader, rank=rank, names=names).items()
    }


def step_arrays(
    reader: Reader, *, rank: int, names: frozenset[str] | None = None
) -> dict[str, tuple[Array, Array]]:
    """Return the steps and the values of each step metric, in full."""
    parts: dict[str, list[tuple[Any, Any, Any]]] = {}
    for table in reader.tables("metrics", rank=rank):
        first = table.header.num_fixed
        for column, name in enumerate(table.header.columns[first:], start=first):
            if names is None or name in names:
                parts.setdefault(name, []).append((table.rows[:, 0], table.rows[:, 3], table.rows[:, column]))
    return {name: _joined(pieces) for name, pieces in parts.items()}


def resource_series(reader: Reader, *, rank: int, max_points: int) -> dict[str, Any]:
    """Return the hardware readings over time, and the names of the GPUs."""
    from .downsample import extremes, join_lines

    parts: dict[str, list[tuple[Any, Any]]] = {}
    for table in reader.tables("resources", rank=rank):
        first = table.header.num_fixed
        for column, name in enumerate(table.header.columns[first:], start=first):
            parts.setdefault(name, []).append((table.rows[:, 1], table.rows[:, column]))
    lines = {}
    for name, pieces in parts.items():
        x, y = extremes(*join_lines(pieces), max_points=max_points)
        lines[name] = {"x": [round(value, 3) for value in x.tolist()], "y": _short(y)}
    readings = [entry for entry in reader.entries({"resources"}) if entry.event.rank == rank]
    gpus = readings[-1].event.data.get("gpus", []) if readings else []
    return {"lines": lines, "devices": [str(gpu.get("name", "")) for gpu in gpus if isinstance(gpu, dict)]}


def latest_progress(reader: Reader, *, rank: int) -> dict[str, float]:
    """Return the last progress of a rank: id, time_s, epoch, step and num_steps."""
    position, _ = _latest_row(reader, "progress", rank=rank)
    return position


def last_step(reader: Reader, *, rank: int) -> tuple[int, int]:
    """Return the last step with metrics and its epoch; -1 if unknown."""
    position, _ = _latest_row(reader, "metrics", rank=rank)
    return int(position.get("step", -1)), int(position.get("epoch", -1))


def _latest_row(reader: Reader, kind: str, *, rank: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the last row of a kind that is stored in tables: its known fixed columns, and its values."""
    newest: Table | None = None
    for table in reader.tables(kind, rank=rank):
        if len(table.rows) and (newest is None or table.rows[-1, 0] > newest.rows[-1, 0]):
            newest = table
    if newest is None:
        return {}, {}
    columns, values = newest.header.columns, newest.rows[-1].tolist()
    fixed = newest.header.num_fixed
    position = {name: value for name, value in zip(columns[:fixed], values) if value == value}  # drops NaN
    return position, dict(zip(columns[fixed:], values[fixed:]))


def steps_before(reader: Reader, entries: Sequence[Entry], *, rank: int) -> list[dict[str, int]]:
    """Return the last step with metrics before each entry as {"step": …}, or {} if there is none."""
    import numpy as np

    ids = np.array([entry.id for entry in entries], dtype=float)
    nearest = np.full(len(ids), -1.0)
    steps = np.full(len(ids), np.nan)
    for table in reader.tables("metrics", rank=rank):
        at = np.searchsorted(table.rows[:, 0], ids) - 1
        rows = table.rows[np.maximum(at, 0)]
        is_nearer = (at >= 0) & (rows[:, 0] > nearest) if len(rows) else np.zeros(0, dtype=bool)
        nearest[is_nearer], steps[is_nearer] = rows[is_nearer, 0], rows[is_nearer, 3]
    return [{"step": int(step)} if step == step else {} for step in steps.tolist()]


def rank_summaries(reader: Reader, starts: list[Entry]) -> list[dict[str, Any]]:
    """Return a record for each rank: its host, its progress and its latest values."""
    found: dict[int, dict[str, Any]] = {}
    for entry in starts:
        found[entry.event.rank] = {"rank": entry.event.rank, "host": str(entry.event.data.get("host", ""))}
    for kind in ("metrics", "resources", "progress"):
        for table in reader.tables(kind):
            found.setdefault(table.header.rank, {"rank": table.header.rank, "host": ""})
    for rank, record in found.items():
        position, metrics = _latest_row(reader, "metrics", rank=rank)
        _, resources = _latest_row(reader, "resources", rank=rank)
        record |= latest_progress(reader, rank=rank) | position
        record |= {"metrics": metrics, **non_finite.by_name(metrics), "resources": resources}
    return [found[rank] for rank in sorted(found)]


def _joined(parts: list[tuple[Array, Array, Array]]) -> tuple[Array, Array]:
    import numpy as np

    from .downsample import latest_pass

    if len(parts) > 1:  # the metric is in several tables: restore the order in which points were written
        ids, x, y = (np.concatenate([part[column] for part in parts]) for column in range(3))
        order = np.argsort(ids, kind="stable")
        x, y = x[order], y[order]
    else:
        _, x, y = parts[0]
    kept = latest_pass(x)
    return (x, y) if isinstance(kept, slice) else (x[kept], y[kept])


def _metric_line(
    x: Array, y: Array, *, max_points: int, start: float | None, end: float | None
) -> dict[str, Any]:
    import numpy as np

    from .downsample import extremes

    if start is not None or end is not None:
        # One point beyond each edge, so that the line reaches the edge.
        left = int(np.searchsorted(x, -np.inf if start is None else start)) - 1
        right = int(np.searchsorted(x, np.inf if end is None else end, side="right")) + 1
        x, y = x[max(left, 0) : right], y[max(left, 0) : right]
    x, y = extremes(x, y, max_points=max_points)
    values = _short(y)
    steps = [int(value) if value.is_integer() else value for value in x.tolist()]
    return {"x": steps, "y": values, **non_finite.by_index(values)}


def _short(values: Any) -> list[float]:
    """Round to seven digits: more than a chart can show, at half the size."""
    return [float(f"{value:.7g}") for value in values.tolist()]
