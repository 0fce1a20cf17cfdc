"""Exporting histories: a CSV table, a text log, an HTML page.

A history maps epochs, counted from 0, to values; the exports count epochs from 1. A missing epoch stays
missing: a blank cell, no entry in the log, a gap in the line.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

from flodl.core.errors import MetricError
from flodl.core.eta import seconds_left
from flodl.core.formats import a_type, format_duration, format_metric
from flodl.core.output_files import check_path, write_output

from .epochs import check_total_epochs
from .plot import page

Histories = Mapping[str, Mapping[int, float]]

# Spreadsheet programs run a cell that starts with one of these as a formula.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")

_PICTURES = (".png", ".jpg", ".jpeg", ".pdf", ".gif", ".svg", ".webp")


def to_csv(histories: Histories) -> str:
    """Return a CSV table with a row per epoch and a column per metric.

    Numbers have 8 decimals, in scientific notation where those would lose digits. A name that a spreadsheet
    program would run as a formula is prefixed with an apostrophe, which makes it text.

    >>> print(to_csv({"loss": {0: 0.5, 1: 0.25}, "accuracy": {1: 0.9}, "=1+1": {0: 1e-12}}), end="")
    epoch,loss,accuracy,'=1+1
    1,0.50000000,,1.00000000e-12
    2,0.25000000,0.90000000,
    """
    epochs = _epochs(histories)
    lines = [["epoch", *(_cell(name) for name in histories)]]
    for epoch in range(epochs[0], epochs[-1] + 1):  # an epoch without values has a row too
        values = (history.get(epoch) for history in histories.values())
        lines.append([str(epoch + 1), *("" if value is None else _decimals(value) for value in values)])
    return "".join(",".join(line) + "\n" for line in lines)


def to_log(histories: Histories, durations: Mapping[int, float], total_epochs: int = 0) -> str:
    """Return a line per epoch, with its duration and the remaining time estimated at its end.

    A name that is not a single plain word is written as a JSON string.

    >>> print(to_log({"loss": {0: 0.5, 1: 0.25}}, {0: 1.5, 1: 1.5}, total_epochs=3), end="")
    # flodl training log
    epoch   1  loss=0.5000  [1.5s  ETA 3s]
    epoch   2  loss=0.2500  [1.5s  ETA 1.5s]
    """
    check_total_epochs(total_epochs, "the log")
    lines = ["# flodl training log"]
    for epoch in _epochs(histories):
        parts = [f"epoch {epoch + 1:3d}"]
        for name, history in histories.items():
            if epoch in history:
                parts.append(f"{_word(name)}={format_metric(history[epoch])}")
        if epoch in durations:
            parts.append(f"[{_timing(epoch, durations, total_epochs)}]")
        lines.append("  ".join(parts))
    return "\n".join(lines) + "\n"


def export_csv(path: str | os.PathLike[str], histories: Histories) -> Path:
    """Write the result of `to_csv` to a file."""
    _check_suffix(path, ".csv", "a CSV table", (".json", ".jsonl", ".html", ".xlsx", ".parquet", *_PICTURES))
    return write_output(path, to_csv(histories), example="trends.csv", error=MetricError)


def write_log(
    path: str | os.PathLike[str],
    histories: Histories,
    durations: Mapping[int, float],
    total_epochs: int = 0,
) -> Path:
    """Write the result of `to_log` to a file."""
    text = to_log(histories, durations, total_epochs)
    return write_output(path, text, example="trends.log", error=MetricError)


def plot_html(path: str | os.PathLike[str], histories: Histories, *, title: str = "Training trends") -> Path:
    """Write a self-contained interactive HTML page."""
    _check_suffix(path, ".html", "an HTML page", (".csv", ".json", ".txt", *_PICTURES))
    _epochs(histories)
    return write_output(path, page(histories, title=title), example="trends.html", error=MetricError)


def _check_suffix(path: str | os.PathLike[str], own: str, written: str, others: tuple[str, ...]) -> None:
    """Raise if the name of a file asks for another format than the one that is written."""
    check_path(path, example=f"trends{own}", error=MetricError)
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    if suffix in others:
        raise MetricError(
            f"{os.fspath(path)!r} asks for {suffix[1:].upper()}, but {written} is written. "
            f"Use the suffix {own}."
        )


def _check_histories(histories: Histories) -> None:
    advice = "Pass the values of each metric by epoch, such as {'loss': {0: 0.5, 1: 0.25}}."
    if not isinstance(histories, Mapping):
        raise MetricError(f"the histories are {a_type(histories)}. {advice}")
    for name, history in histories.items():
        if not isinstance(history, Mapping):
            raise MetricError(f"the history of {name!r} is {a_type(history)}. {advice}")


def _epochs(histories: Histories) -> list[int]:
    _check_histories(histories)
    epochs = sorted({epoch for history in histories.values() for epoch in history})
    if not epochs:
        names = ", ".join(repr(name) for name in histories)
        why = f"{names} has no value in any epoch" if names else "no metric was recorded"
        raise MetricError(
            f"there is nothing to export: {why}. Call record(name, value) while training and flush() or "
            "end_epoch() after each epoch, then export."
        )
    return epochs


def _cell(name: str) -> str:
    safe = f"'{name}" if name.lstrip(" ").startswith(_FORMULA_STARTS) else name
    # Unlike RFC 4180, quote ';' and tabs too: some programs split at them.
    needs_quotes = any(mark in safe for mark in ',;"\t\r\n') or safe != safe.strip()
    return '"' + safe.replace('"', '""') + '"' if needs_quotes else safe


def _decimals(value: float) -> str:
    if value != 0 and math.isfinite(value) and not 1e-5 <= abs(value) < 1e15:
        return f"{value:.8e}"
    return f"{value:.8f}"


def _word(name: str) -> str:
    plain = name.isprintable() and not any(mark in name for mark in ' ="[]\\') and name != ""
    text = name if plain else json.dumps(name, ensure_ascii=False)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _timing(epoch: int, durations: Mapping[int, float], total_epochs: int) -> str:
    so_far = {finished: seconds for finished, seconds in durations.items() if finished <= epoch}
    left = seconds_left(so_far, done=epoch + 1, total_epochs=total_epochs)
    eta = f"  ETA {format_duration(left)}" if left is not None and total_epochs > epoch + 1 else ""
    return f"{format_duration(durations[epoch])}{eta}"
