"""One run in a few numbers, for tables that compare many runs: state, time, and the best and last metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from flodl.core.metric_modes import Mode, mode_of_metric

from ..journal import Reader
from .history import epoch_record, merge_history
from .series import metric_series
from .snapshot import settings_of
from .starts import starts_of
from .status import Run, status

_ALL_POINTS = 1 << 62


def summary(
    run: Run, *, rank: int = 0, live: bool | None = None, modes: Mapping[str, Mode] = MappingProxyType({})
) -> dict[str, Any]:
    """Return the state, the elapsed time, the settings and the metrics of a run.

    Of each metric: the last value, the best one with its epoch, and whether "min" or "max" is better, which
    `modes` sets and else its name says. A run without epochs is summarized by its steps.
    """
    reader = Reader.of(run)
    starts = starts_of(reader, rank)
    current = status(reader, rank=rank, live=live, starts=starts)
    total = current["total_epochs"]
    entries = [entry for entry in reader.entries({"epoch"}) if entry.event.rank == rank]
    history = merge_history(epoch_record(entry.event, total) for entry in entries)
    elapsed_s = current.get("elapsed_s")
    if elapsed_s is None and current["started_s"] is not None:
        elapsed_s = current["earlier_s"] + max(current["now_s"] - current["started_s"], 0.0)
    return {
        "name": current["name"],
        "state": current["state"],
        "started_s": current["started_s"],
        "elapsed_s": elapsed_s,
        "epoch": history[-1]["epoch"] if history else 0,
        "total_epochs": total,
        "metrics": _of_epochs(history, modes) if history else _of_steps(reader, rank, modes),
        "config": settings_of(starts, current["started_s"]),
    }


def _of_epochs(history: Sequence[dict[str, Any]], modes: Mapping[str, Mode]) -> dict[str, dict[str, Any]]:
    names = dict.fromkeys(name for record in history for name in record["metrics"])
    return {
        name: _best_and_last(
            [(record["epoch"], record["metrics"][name]) for record in history if name in record["metrics"]],
            modes.get(name) or mode_of_metric(name),
        )
        for name in names
    }


def _of_steps(reader: Reader, rank: int, modes: Mapping[str, Mode]) -> dict[str, dict[str, Any]]:
    series = metric_series(reader, rank=rank, max_points=_ALL_POINTS)
    found = {}
    for name, line in series.items():
        found[name] = _best_and_last(zip(line["x"], line["y"]), modes.get(name) or mode_of_metric(name))
        found[name]["step"] = found[name].pop("epoch")
    return found


def _best_and_last(values: Iterable[tuple[Any, Any]], mode: Mode) -> dict[str, Any]:
    """Return the last value, and the best finite one with its position.

    >>> _best_and_last([(1, 0.5), (2, 0.25), (3, math.nan)], "min")
    {'mode': 'min', 'best': 0.25, 'epoch': 2, 'last': nan}
    """
    listed = list(values)
    finite = [(value, at) for at, value in listed if isinstance(value, (int, float)) and math.isfinite(value)]
    choose = min if mode == "min" else max
    best, position = choose(finite, key=lambda item: item[0]) if finite else (None, None)
    return {"mode": mode, "best": best, "epoch": position, "last": listed[-1][1] if listed else None}
