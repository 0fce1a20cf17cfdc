"""One run in a few numbers, for tables that compare many runs: state, time, and the best and last metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from flodl.core.best_values import best_position
from flodl.core.metric_modes import Mode, known_mode

from ..journal import Entry, Reader
from . import non_finite
from .changed_settings import changed_settings
from .history import epoch_record, merge_history
from .series import step_arrays
from .snapshot import settings_of
from .starts import starts_of
from .status import Run, status


def summary(
    run: Run,
    *,
    rank: int = 0,
    live: bool | None = None,
    modes: Mapping[str, Mode | None] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the state, the elapsed time, the settings and the metrics of a run.

    Of each metric: the last value, the best one with its epoch, and whether "min" or "max" is better, which
    `modes` sets, else the table of its classes, else its name; if none does, "min" is assumed
    (`mode_is_assumed`). Of the numbers of single classes, only those in `modes` are included.
    A run without epochs is summarized by its steps.
    `changed` are the settings that a later start changed, by path, `ignored` those that one set without
    effect, `facts` what else may differ.
    """
    reader = Reader.of(run)
    starts = starts_of(reader, rank)
    current = status(reader, rank=rank, live=live, starts=starts)
    total = current["total_epochs"]
    entries = [entry for entry in reader.entries({"epoch"}) if entry.event.rank == rank]
    history = merge_history(epoch_record(entry.event, total) for entry in entries)
    changes = changed_settings(reader, starts, entries, rank=rank, started_s=current["started_s"])
    elapsed_s = current.get("elapsed_s")
    if elapsed_s is None and current["started_s"] is not None:
        elapsed_s = current["earlier_s"] + max(current["now_s"] - current["started_s"], 0.0)
    return {
        "name": current["name"],
        "folder": current["folder"],
        "state": current["state"],
        "started_s": current["started_s"],
        "elapsed_s": elapsed_s,
        "epoch": history[-1]["epoch"] if history else 0,
        "total_epochs": total,
        "metrics": _of_epochs(history, modes) if history else _of_steps(reader, rank, modes),
        "config": settings_of(starts, current["started_s"]),
        "changed": changes.changed,
        "ignored": changes.ignored,
        "facts": _facts(current, reader.entries({"graph"}, last=1)),
    }


def unreadable_summary(name: str, reason: str) -> dict[str, Any]:
    """Return the summary of a run whose journal cannot be read."""
    times = {"started_s": None, "elapsed_s": None, "epoch": 0, "total_epochs": 0}
    return {
        "name": name,
        "folder": name,
        "state": "unreadable",
        "message": reason,
        **times,
        "metrics": {},
        "config": [],
        "changed": {},
        "ignored": {},
        "facts": {},
    }


def _facts(current: Mapping[str, Any], graphs: Sequence[Entry]) -> dict[str, Any]:
    graph = graphs[-1].event.data if graphs else {}
    known = {
        "total epochs": current["total_epochs"] or None,
        "architecture": graph.get("hash"),
        "parameters": graph.get("parameters", {}).get("total"),
        "device": graph.get("device"),
        "hardware": current["facts"].get("hardware"),
        **{f"{name} version": version for name, version in current["facts"].get("versions", {}).items()},
    }
    return {name: value for name, value in known.items() if value is not None}


def _of_epochs(
    history: Sequence[dict[str, Any]], modes: Mapping[str, Mode | None]
) -> dict[str, dict[str, Any]]:
    names = dict.fromkeys(name for record in history for name in record["metrics"])
    of_classes = {name: _of_class(history, name, mode) for name, mode in modes.items() if name not in names}
    return {name: found for name, found in of_classes.items() if found} | {
        name: _best_and_last(
            [(record["epoch"], record["metrics"][name]) for record in history if name in record["metrics"]],
            modes.get(name) or _mode_of_table(history, name) or known_mode(name),
        )
        for name in names
    }


def _of_class(history: Sequence[dict[str, Any]], name: str, mode: Mode | None) -> dict[str, Any] | None:
    """Return the values of one class, such as "eval_f1_cat", from the tables of the epochs; None without any.

    >>> table = {"labels": ["cat", "loss"], "values": [0.1, 0.2]}
    >>> _of_class([{"epoch": 1, "tables": {"f1": table}}], "f1_loss", None)
    {'mode': 'max', 'best': 0.2, 'epoch': 1, 'last': 0.2}
    """
    values, metric = [], name
    for record in history:
        for table_name, table in record.get("tables", {}).items():
            for label, value in zip(table["labels"], table["values"]):
                if f"{table_name}_{label}" == name and not isinstance(value, list):
                    metric = table_name
                    values.append((record["epoch"], value))
    mode = mode or _mode_of_table(history, metric) or known_mode(metric)
    return _best_and_last(values, mode) if values else None


def _mode_of_table(history: Sequence[dict[str, Any]], name: str) -> Mode | None:
    """Return the direction that the last table of a metric records; None without one."""
    tables = (record["tables"][name] for record in reversed(history) if name in record.get("tables", {}))
    mode = next((table.get("mode") for table in tables), None)
    return mode if mode in ("min", "max") else None


def _of_steps(reader: Reader, rank: int, modes: Mapping[str, Mode | None]) -> dict[str, dict[str, Any]]:
    import numpy as np

    found = {}
    for name, (steps, values) in step_arrays(reader, rank=rank).items():
        mode = modes.get(name) or known_mode(name)
        finite = np.flatnonzero(np.isfinite(values))
        choose = np.argmax if mode == "max" else np.argmin
        # Of many points, only the best one and the last one matter.
        best = [int(finite[choose(values[finite])])] if len(finite) else []
        points = [(steps[at].item(), values[at].item()) for at in (*best, -1)]
        found[name] = _best_and_last(
            [(int(step) if step.is_integer() else step, value) for step, value in points], mode
        )
        found[name]["step"] = found[name].pop("epoch")
    return found


def _best_and_last(values: Iterable[tuple[Any, Any]], mode: Mode | None) -> dict[str, Any]:
    """Return the last value, and the best finite one with its position; without a mode, "min" is assumed.

    >>> _best_and_last([(1, 0.5), (2, 0.25), (3, math.nan)], "min")
    {'mode': 'min', 'best': 0.25, 'epoch': 2, 'last': nan, 'not_finite': {'last': 'nan'}}
    """
    listed = list(values)
    finite = [(value, at) for at, value in listed if isinstance(value, (int, float)) and math.isfinite(value)]
    first = best_position((value for value, _ in finite), mode or "min")
    best, position = (None, None) if first is None else finite[first]
    last = listed[-1][1] if listed else None
    found: dict[str, Any] = {"mode": mode or "min", "best": best, "epoch": position, "last": last}
    if mode is None:
        found["mode_is_assumed"] = True
    return {**found, **non_finite.by_name({"last": last})}
