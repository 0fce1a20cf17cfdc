"""The numbers of a run as lines to draw: few enough for a page, with every peak and dip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import not_finite

if TYPE_CHECKING:
    from .journal import Entry, Reader, Table

Lines = dict[str, dict[str, Any]]


def metric_lines(
    reader: Reader,
    *,
    rank: int,
    most: int,
    start: float | None = None,
    end: float | None = None,
    names: frozenset[str] | None = None,
) -> Lines:
    """Give the points of each metric within an epoch, over the step: {name: {x, y}}, in `y` also NaN."""
    pieces: dict[str, list[tuple[Any, Any, Any]]] = {}
    for table in reader.tables("metrics", rank=rank):
        first = table.header.num_fixed
        for column, name in enumerate(table.header.columns[first:], start=first):
            if names is None or name in names:
                pieces.setdefault(name, []).append(
                    (table.rows[:, 0], table.rows[:, 3], table.rows[:, column])
                )
    return {name: _line(parts, most=most, start=start, end=end) for name, parts in pieces.items()}


def resource_lines(reader: Reader, *, rank: int, most: int) -> dict[str, Any]:
    """Give what the machine did: each reading over the time, and the devices by name."""
    from .journal.sampling import extremes, joined

    pieces: dict[str, list[tuple[Any, Any]]] = {}
    for table in reader.tables("resources", rank=rank):
        first = table.header.num_fixed
        for column, name in enumerate(table.header.columns[first:], start=first):
            pieces.setdefault(name, []).append((table.rows[:, 1], table.rows[:, column]))
    lines = {}
    for name, parts in pieces.items():
        x, y = extremes(*joined(parts), most=most)
        lines[name] = {"x": _rounded(x, 3), "y": _short(y)}
    devices = [entry for entry in reader.entries({"resources"}) if entry.event.rank == rank]
    gpus = devices[-1].event.data.get("gpus", []) if devices else []
    return {"lines": lines, "devices": [str(gpu.get("name", "")) for gpu in gpus if isinstance(gpu, dict)]}


def latest_place(reader: Reader, *, rank: int) -> dict[str, float]:
    """Give the last place within an epoch that a rank told: id, time_s, epoch, step and num_steps."""
    place, _ = _latest(reader, "progress", rank=rank)
    return place


def last_step(reader: Reader, *, rank: int) -> tuple[int, int]:
    """Give the last step of a run that told metrics, and its epoch; -1 for what is not known."""
    place, _ = _latest(reader, "metrics", rank=rank)
    return int(place.get("step", -1)), int(place.get("epoch", -1))


def _latest(reader: Reader, kind: str, *, rank: int) -> tuple[dict[str, float], dict[str, float]]:
    """Give the last numbers of a kind that lies in tables: where they belong, as far as told, and by name."""
    newest: Table | None = None
    for table in reader.tables(kind, rank=rank):
        if len(table.rows) and (newest is None or table.rows[-1, 0] > newest.rows[-1, 0]):
            newest = table
    if newest is None:
        return {}, {}
    columns, values = newest.header.columns, newest.rows[-1].tolist()
    fixed = newest.header.num_fixed
    place = {name: value for name, value in zip(columns[:fixed], values) if value == value}  # NaN: not told
    return place, dict(zip(columns[fixed:], values[fixed:]))


def ranks_of(reader: Reader, starts: list[Entry]) -> list[dict[str, Any]]:
    """Give a line for each rank: where it runs, how far it is, what it last said."""
    found: dict[int, dict[str, Any]] = {}
    for entry in starts:
        found[entry.event.rank] = {"rank": entry.event.rank, "host": str(entry.event.data.get("host", ""))}
    for kind in ("metrics", "resources", "progress"):
        for table in reader.tables(kind):
            found.setdefault(table.header.rank, {"rank": table.header.rank, "host": ""})
    for rank, record in found.items():
        place, metrics = _latest(reader, "metrics", rank=rank)
        _, resources = _latest(reader, "resources", rank=rank)
        record |= latest_place(reader, rank=rank) | place
        record |= {"metrics": metrics, **not_finite.by_name(metrics), "resources": resources}
    return [found[rank] for rank in sorted(found)]


def _line(
    parts: list[tuple[Any, Any, Any]], *, most: int, start: float | None, end: float | None
) -> dict[str, Any]:
    import numpy as np

    from .journal.sampling import extremes, forward_only

    if len(parts) > 1:  # one metric in several sets of names: put the points in the order they were written
        ids, x, y = (np.concatenate([part[place] for part in parts]) for place in range(3))
        order = np.argsort(ids, kind="stable")
        x, y = x[order], y[order]
    else:
        _, x, y = parts[0]
    kept = forward_only(x)
    if not isinstance(kept, slice):
        x, y = x[kept], y[kept]
    if start is not None or end is not None:
        # One point beyond each edge, so that the line reaches the edge.
        left = int(np.searchsorted(x, -np.inf if start is None else start)) - 1
        right = int(np.searchsorted(x, np.inf if end is None else end, side="right")) + 1
        x, y = x[max(left, 0) : right], y[max(left, 0) : right]
    x, y = extremes(x, y, most=most)
    values = _short(y)
    places = [int(value) if value.is_integer() else value for value in x.tolist()]
    return {"x": places, "y": values, **not_finite.by_place(values)}


def _short(values: Any) -> list[float]:
    """Seven digits are more than a chart can show, and half the size."""
    return [float(f"{value:.7g}") for value in values.tolist()]


def _rounded(values: Any, digits: int) -> list[float]:
    return [round(value, digits) for value in values.tolist()]
