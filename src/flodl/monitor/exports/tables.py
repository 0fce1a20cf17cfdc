"""The epochs of a run as a CSV table and as a text log."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flodl.core.errors import MonitorError
from flodl.core.formats import format_duration

from ..journal import Reader
from ..metrics import format_value
from ..snapshot import Run, metric_series, snapshot
from .files import write_export

# Spreadsheet programs run a cell that starts with one of these as a formula.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
# The zero-width joiner in compound emoji; Python considers it not printable.
_JOINER = "\u200d"
_INTEGER_FROM = 1e6
_ALL_POINTS = 1 << 62
_RESOURCES = ("cpu_pct", "ram_used_bytes", "gpu_pct", "vram_used_bytes", "vram_total_bytes")


def export_csv(path: str | os.PathLike[str], run: Run, *, rank: int = 0) -> Path:
    """Write a row for each epoch and a column for each metric, in order of first appearance.

    A run that recorded only step metrics gets a row for each step.
    """
    return write_export(path, csv_text(run, rank=rank))


def csv_text(run: Run, *, rank: int = 0) -> str:
    """Return the CSV table of a run as text."""
    reader = Reader.of(run)
    history = _epochs(reader, rank)
    if not history:
        return _steps_text(reader, rank)
    names = list(dict.fromkeys(name for record in history for name in record["metrics"]))
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["epoch", "duration_s", *map(_escape_formula, names), *_RESOURCES])
    readings = _readings(reader, [float(record["time_s"]) for record in history], rank)
    for record, reading in zip(history, readings):
        metrics = record["metrics"]
        row = [record["epoch"], _cell(record["duration"]), *(_cell(metrics.get(name)) for name in names)]
        table.writerow([*row, *(_cell(reading.get(name)) for name in _RESOURCES)])
    return text.getvalue()


def write_log(path: str | os.PathLike[str], run: Run, *, rank: int = 0) -> Path:
    """Write a line for each epoch, and the total duration at the end."""
    return write_export(path, log_text(run, rank=rank))


def log_text(run: Run, *, rank: int = 0) -> str:
    """Return the log of a run as text."""
    reader = Reader.of(run)
    history = _epochs(reader, rank)
    if not history:
        raise _no_epochs(reader)
    lines = ["# flodl training log"]
    for record in history:
        total = f"/{record['total']}" if record["total"] else ""
        parts = [f"epoch {record['epoch']}{total}"]
        parts += [f"{_quote(name)}={format_value(value)}" for name, value in record["metrics"].items()]
        if record["duration"] is not None:
            parts.append(f"[{format_duration(record['duration'])}]")
        lines.append("  ".join(parts))
    total_s = sum(record["duration"] or 0.0 for record in history)
    lines.append(f"# total: {format_duration(total_s)}")
    return "\n".join(lines) + "\n"


def _epochs(reader: Reader, rank: int) -> list[dict[str, Any]]:
    history: list[dict[str, Any]] = snapshot(reader, rank=rank, max_points=2)["history"]
    return history


def _no_epochs(reader: Reader) -> MonitorError:
    return MonitorError(
        f"the run {str(reader.path.parent)!r} has no epochs yet, so there is nothing to export. "
        "Call monitor.log(epoch, metrics) at the end of each epoch first."
    )


def _steps_text(reader: Reader, rank: int) -> str:
    """Return a table with a row for each step that has metrics."""
    series = metric_series(reader, rank=rank, max_points=_ALL_POINTS)
    if not series:
        raise _no_epochs(reader)
    rows: dict[float, dict[str, float]] = {}
    for name, line in series.items():
        for step, value in zip(line["x"], line["y"]):
            rows.setdefault(step, {})[name] = value
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["step", *map(_escape_formula, series)])
    for step in sorted(rows):
        table.writerow([step, *(_cell(rows[step].get(name)) for name in series)])
    return text.getvalue()


def _readings(reader: Reader, times_s: Sequence[float], rank: int) -> list[dict[str, float]]:
    """Return the last hardware reading before each of the given times."""
    tables = reader.tables("resources", rank=rank)
    found = []
    for time_s in times_s:
        reading: dict[str, float] = {}
        for table in tables:
            row = int(table.rows[:, 1].searchsorted(time_s, side="right")) - 1
            if row >= 0:
                reading.update(zip(table.header.columns, table.rows[row].tolist()))
        found.append(_with_gpu_totals(reading))
    return found


def _with_gpu_totals(reading: Mapping[str, float]) -> dict[str, float]:
    """Add the total memory and the mean utilization of all GPUs."""
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
    """Format a number without superfluous digits.

    >>> [_cell(value) for value in (0.1, 34_359_738_368.0, 1e30, None)]
    ['0.1', '34359738368', '1e+30', '']
    """
    if value is None:
        return ""
    return str(int(value)) if _INTEGER_FROM <= abs(value) <= 2**53 and value % 1 == 0 else f"{value:.10g}"


def _escape_formula(name: str) -> str:
    """Escape a name that a spreadsheet program would run as a formula."""
    return f"'{name}" if name.lstrip(" ").startswith(_FORMULA_STARTS) else name


def _quote(name: str) -> str:
    """Return a name as a single word, quoted if necessary; letters of any script stay readable."""
    letters = name.replace(_JOINER, "")
    is_plain = letters.isprintable() and name != "" and not any(mark in name for mark in ' ="[]\\')
    return name if is_plain else json.dumps(name, ensure_ascii=not letters.isprintable())
