"""Write metrics to a CSV file during the run."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping
from typing import Any

from flodl.core.files import expand_user, replace_atomic

from ..events import Event
from .sink import open_to_append

_FIXED_COLUMNS = ("epoch", "step", "time_s", "duration_s")
# Spreadsheet programs run a cell that starts with one of these as a formula.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


class Csv:
    """Write a row for each epoch and for each recorded step.

    Rows of steps have a `step`; rows of epochs do not. A new metric gets a column at the end; the file is
    then rewritten, so that all rows match. An epoch that is logged again, for example by a run that resumes
    from an earlier save, replaces its row and those of later epochs.

    >>> import tempfile
    >>> from pathlib import Path
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
        self._path = expand_user(path)
        self._columns: list[str] = []
        # The epochs that have a row.
        self._epochs = set[str]()
        if self._path.exists():
            with open(self._path, encoding="utf-8", newline="") as file:
                rows = csv.DictReader(file)
                self._columns = list(rows.fieldnames or ())
                self._epochs = {row["epoch"] for row in rows if _is_epoch(row)}
        self._add_columns(_FIXED_COLUMNS)
        self._file = open_to_append(self._path)

    def write(self, event: Event) -> None:
        """Append a row."""
        if event.kind not in ("epoch", "metrics") or event.rank != 0:
            return
        if event.kind == "epoch" and not self._make_room(event):
            return
        metrics = {_column(name): value for name, value in event.data.get("metrics", {}).items()}
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
        """Rewrite the file with more columns; the old file is kept until the new one is complete."""
        known = self._columns
        self._columns = list(dict.fromkeys([*known, *names]))
        if self._columns != known:
            self._rewrite(has_header=bool(known))

    def _make_room(self, event: Event) -> bool:
        """Return whether to write the row of an epoch; if it is logged again, delete its earlier row."""
        epoch = int(event.data["epoch"]) + 1
        if str(epoch) in self._epochs:
            if event.data.get("restored"):
                return False
            self._file.close()
            self._rewrite(before_epoch=epoch)
            self._file = open_to_append(self._path)
            self._epochs = {kept for kept in self._epochs if _is_before(kept, epoch)}
        self._epochs.add(str(epoch))
        return True

    def _rewrite(self, *, has_header: bool = True, before_epoch: int | None = None) -> None:
        """Rewrite the file with the current columns, without the rows of epochs from `before_epoch` on."""
        with replace_atomic(self._path) as new, open(new, "w", encoding="utf-8", newline="") as target:
            writer = csv.DictWriter(target, self._columns, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            if has_header:
                with open(self._path, encoding="utf-8", newline="") as source:
                    for row in csv.DictReader(source):
                        if (
                            before_epoch is None
                            or not _is_epoch(row)
                            or _is_before(row["epoch"], before_epoch)
                        ):
                            writer.writerow(row)


def _is_epoch(row: Mapping[str, Any]) -> bool:
    return bool(row.get("epoch")) and not row.get("step")


def _is_before(epoch: str, other: int) -> bool:
    return not epoch.isdecimal() or int(epoch) < other


def _column(name: str) -> str:
    is_reserved = name in _FIXED_COLUMNS
    return f"'{name}" if name.lstrip(" ").startswith(_FORMULA_STARTS) or is_reserved else name
