"""The epochs of a run as a table for spreadsheets and as a log for people."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flodl.core.errors import MonitorError
from flodl.core.files import write_atomic
from flodl.core.formats import format_duration

from .journal import Reader
from .numbers import shown
from .series import metric_lines
from .snapshot import Run, snapshot

# A cell that starts with one of these is run as a formula by spreadsheet programs.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
# Pictures of several people or things are joined by this; Python counts it as not printable.
_JOINER = "\u200d"
_LEAST_WHOLE = 1e6
_ALL = 1 << 62  # points of a line
_RESOURCES = ("cpu_pct", "ram_used_bytes", "gpu_pct", "vram_used_bytes", "vram_total_bytes")


def export_csv(path: str | os.PathLike[str], run: Run, *, rank: int = 0) -> Path:
    """Write a row for each epoch; every metric that any epoch has is a column, in the order they came.

    A run that has told nothing but values within epochs gets a row for each step.
    """
    return write_atomic(path, csv_text(run, rank=rank).encode("utf-8", "backslashreplace"))


def csv_text(run: Run, *, rank: int = 0) -> str:
    """Give the table of a run as text."""
    reader = Reader.of(run)
    history = _epochs(reader, rank)
    if not history:
        return _steps_text(reader, rank)
    names = list(dict.fromkeys(name for record in history for name in record["metrics"]))
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["epoch", "duration_s", *map(_neutral, names), *_RESOURCES])
    readings = _readings(reader, [float(record["time_s"]) for record in history], rank)
    for record, reading in zip(history, readings):
        metrics = record["metrics"]
        row = [record["epoch"], _cell(record["duration"]), *(_cell(metrics.get(name)) for name in names)]
        table.writerow([*row, *(_cell(reading.get(name)) for name in _RESOURCES)])
    return text.getvalue()


def write_log(path: str | os.PathLike[str], run: Run, *, rank: int = 0) -> Path:
    """Write a line for each epoch, and the whole duration at the end."""
    return write_atomic(path, log_text(run, rank=rank).encode("utf-8", "backslashreplace"))


def log_text(run: Run, *, rank: int = 0) -> str:
    """Give the log of a run as text."""
    reader = Reader.of(run)
    history = _epochs(reader, rank)
    if not history:
        raise _nothing(reader)
    lines = ["# flodl training log"]
    for record in history:
        total = f"/{record['total']}" if record["total"] else ""
        parts = [f"epoch {record['epoch']}{total}"]
        parts += [f"{_word(name)}={shown(value)}" for name, value in record["metrics"].items()]
        if record["duration"] is not None:
            parts.append(f"[{format_duration(record['duration'])}]")
        lines.append("  ".join(parts))
    total_s = sum(record["duration"] or 0.0 for record in history)
    lines.append(f"# total: {format_duration(total_s)}")
    return "\n".join(lines) + "\n"


def _epochs(reader: Reader, rank: int) -> list[dict[str, Any]]:
    history: list[dict[str, Any]] = snapshot(reader, rank=rank, most=2)["history"]
    return history


def _nothing(reader: Reader) -> MonitorError:
    return MonitorError(
        f"the run {str(reader.path.parent)!r} has no epoch yet, so there is nothing to export. "
        "Call monitor.log(epoch, metrics) at the end of each epoch first."
    )


def _steps_text(reader: Reader, rank: int) -> str:
    """Give a row for each step at which anything was told."""
    lines = metric_lines(reader, rank=rank, most=_ALL)
    if not lines:
        raise _nothing(reader)
    rows: dict[float, dict[str, float]] = {}
    for name, line in lines.items():
        for step, value in zip(line["x"], line["y"]):
            rows.setdefault(step, {})[name] = value
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["step", *map(_neutral, lines)])
    for step in sorted(rows):
        table.writerow([step, *(_cell(rows[step].get(name)) for name in lines)])
    return text.getvalue()


def _readings(reader: Reader, times_s: Sequence[float], rank: int) -> list[dict[str, float]]:
    """Give the last reading of the machine before each of these moments."""
    tables = reader.tables("resources", rank=rank)
    found = []
    for time_s in times_s:
        reading: dict[str, float] = {}
        for table in tables:
            row = int(table.rows[:, 1].searchsorted(time_s, side="right")) - 1
            if row >= 0:
                reading.update(zip(table.header.columns, table.rows[row].tolist()))
        found.append(_summed(reading))
    return found


def _summed(reading: Mapping[str, float]) -> dict[str, float]:
    """Add up the memory of the GPUs and take the mean of their load."""
    by_name: dict[str, list[float]] = {}
    for name, value in reading.items():
        if name.startswith("gpus."):
            by_name.setdefault(name.rsplit(".", 1)[1], []).append(value)
    summary = dict(reading)
    if "util_pct" in by_name:
        summary["gpu_pct"] = sum(by_name["util_pct"]) / len(by_name["util_pct"])
    for name in ("vram_used_bytes", "vram_total_bytes"):
        if name in by_name:
            summary[name] = sum(by_name[name])
    return summary


def _cell(value: float | None) -> str:
    """Give a number with the digits that it has, and no more.

    >>> [_cell(value) for value in (0.1, 34_359_738_368.0, 1e30, None)]
    ['0.1', '34359738368', '1e+30', '']
    """
    if value is None:
        return ""
    return str(int(value)) if _LEAST_WHOLE <= abs(value) <= 2**53 and value % 1 == 0 else f"{value:.10g}"


def _neutral(name: str) -> str:
    """Make a name that a spreadsheet program would run as a formula into text."""
    return f"'{name}" if name.lstrip(" ").startswith(_FORMULA_STARTS) else name


def _word(name: str) -> str:
    """Give a name as one word, in quotes where it is more; letters of any script stay letters."""
    letters = name.replace(_JOINER, "")
    plain = letters.isprintable() and name != "" and not any(mark in name for mark in ' ="[]\\')
    return name if plain else json.dumps(name, ensure_ascii=not letters.isprintable())
