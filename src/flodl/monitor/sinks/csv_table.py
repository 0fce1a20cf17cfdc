"""Metrics as a table that grows with the run, for spreadsheets."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flodl.core.files import replace_atomic

from ..events import Event
from .sink import open_to_append

_FIRST = ("epoch", "step", "time_s", "duration_s")
# A name that starts like this would be run as a formula by spreadsheet programs.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


class Csv:
    """Write a row for each epoch, and for each set of metrics within one.

    A row within an epoch has its `step`; the row of the epoch itself has none. When a new metric appears,
    it gets a column at the end and the file is written again, so every row keeps its place.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> sink = Csv(Path(folder.name) / "run.csv")
    >>> sink.write(Event("epoch", {"epoch": 0, "metrics": {"loss": 0.5}}, time_s=1.0))
    >>> sink.write(Event("epoch", {"epoch": 1, "metrics": {"loss": 0.25, "accuracy": 0.9}}, time_s=2.0))
    >>> sink.close()
    >>> print((Path(folder.name) / "run.csv").read_text(), end="")
    epoch,step,time_s,duration_s,loss,accuracy
    1,,1.0,,0.5,
    2,,2.0,,0.25,0.9
    >>> folder.cleanup()
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._columns: list[str] = []
        if self._path.exists():
            with open(self._path, encoding="utf-8", newline="") as file:
                self._columns = next(csv.reader(file), [])
        self._add_columns(_FIRST)
        self._file = open_to_append(self._path)

    def write(self, event: Event) -> None:
        """Append a row."""
        if event.kind not in ("epoch", "metrics") or event.rank != 0:
            return
        metrics = {_cell(name): value for name, value in event.data.get("metrics", {}).items()}
        if not set(metrics) <= set(self._columns):
            self._file.close()
            self._add_columns(metrics)
            self._file = open_to_append(self._path)
        row: dict[str, Any] = {
            **metrics,
            "epoch": None if event.data.get("epoch") is None else int(event.data["epoch"]) + 1,
            "step": event.data.get("step"),
            "time_s": event.time_s,
            "duration_s": event.data.get("duration_s"),
        }
        csv.DictWriter(self._file, self._columns, lineterminator="\n").writerow(row)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _add_columns(self, names: Iterable[str]) -> None:
        """Write the file again with more columns; the old one stays until the new one is whole."""
        known = self._columns
        self._columns = list(dict.fromkeys([*known, *names]))
        if self._columns == known:
            return
        with replace_atomic(self._path) as fresh, open(fresh, "w", encoding="utf-8", newline="") as target:
            writer = csv.DictWriter(target, self._columns, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            if known:
                with open(self._path, encoding="utf-8", newline="") as source:
                    writer.writerows(csv.DictReader(source))


def _cell(name: str) -> str:
    clash = name in _FIRST
    return f"'{name}" if name.lstrip(" ").startswith(_FORMULA_STARTS) or clash else name
