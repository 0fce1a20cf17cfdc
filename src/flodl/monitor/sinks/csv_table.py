"""Write metrics to a CSV file during the run."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flodl.core.files import replace_atomic
from flodl.core.usage.calls import MonitorCallError, explain_creation

from .. import validation
from ..events import Event
from .sink import open_to_append

_FIXED_COLUMNS = ("epoch", "step", "time_s", "duration_s")
# Spreadsheet programs run a cell that starts with one of these as a formula.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


@explain_creation(MonitorCallError, example="Write Csv('run.csv').")
class Csv:
    """Write a row for each epoch and for each recorded step.

    Rows of steps have a `step`; rows of epochs do not. A new metric gets a column at the end; the file is
    then rewritten, so that all rows match. An epoch that is logged again, for example by a run that resumes
    from an earlier save, replaces its row and those of later epochs. A metric of a step that is logged again
    replaces its values from that step on.

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
        self._path = validation.file(path)
        self._columns: list[str] = []
        # The epochs that have a row.
        self._epochs = set[str]()
        # By column: a value of an earlier step replaces some. For values that were in the file, that includes
        # their last step; in this process, a step may have several rows.
        self._replaces_before: dict[str, int] = {}
        if self._path.exists():
            with open(self._path, encoding="utf-8", newline="") as file:
                rows = csv.DictReader(file)
                self._columns = list(rows.fieldnames or ())
                for row in rows:
                    if _is_epoch(row):
                        self._epochs.add(row["epoch"])
                    for name in _metrics_of_step(row):
                        before = self._replaces_before.get(name, 0)
                        self._replaces_before[name] = max(before, int(row["step"]) + 1)
        self._add_columns(_FIXED_COLUMNS)
        self._file = open_to_append(self._path)

    def write(self, event: Event) -> None:
        """Append a row."""
        if event.kind not in ("epoch", "metrics") or event.rank != 0:
            return
        metrics = {_column(name): value for name, value in event.data.get("metrics", {}).items()}
        if event.kind == "metrics":
            self._replace_steps(int(event.data["step"]), metrics)
        elif not self._make_room(event):
            return
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
            kept = {other for other in self._epochs if _is_before(other, epoch)}
            # The steps of later epochs go with them; those of this epoch may be new.
            is_last = len(self._epochs) == len(kept) + 1
            self._replace_rows(lambda row: _without_epochs(row, epoch, steps_too=not is_last))
            self._epochs = kept
        self._epochs.add(str(epoch))
        return True

    def _replace_steps(self, step: int, names: Iterable[str]) -> None:
        """Delete the values that these metrics have from a step on, if it is logged again."""
        names = frozenset(names)
        if any(step < self._replaces_before.get(name, 0) for name in names):
            self._replace_rows(lambda row: _without_steps(row, step, names))
        self._replaces_before.update(dict.fromkeys(names, step))

    def _replace_rows(self, change: _Change) -> None:
        self._file.close()
        self._rewrite(change)
        self._file = open_to_append(self._path)

    def _rewrite(self, change: _Change = lambda row: row, *, has_header: bool = True) -> None:
        """Rewrite the file with the current columns; `change` returns a row as it stays, or None."""
        with replace_atomic(self._path) as new, open(new, "w", encoding="utf-8", newline="") as target:
            writer = csv.DictWriter(target, self._columns, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            if has_header:
                with open(self._path, encoding="utf-8", newline="") as source:
                    writer.writerows(row for row in map(change, csv.DictReader(source)) if row is not None)


_Row = dict[Any, Any]
_Change = Callable[[_Row], _Row | None]


def _without_epochs(row: _Row, first: int, *, steps_too: bool) -> _Row | None:
    """Return the row unless it is of an epoch from `first` on, or of a step in a later epoch."""
    if _is_epoch(row):
        return row if _is_before(row["epoch"], first) else None
    return None if steps_too and not _is_before(row.get("epoch") or "", first + 1) else row


def _without_steps(row: _Row, first: int, names: frozenset[str]) -> _Row | None:
    """Return the row without the values of these metrics if it is of a step from `first` on."""
    found = _metrics_of_step(row)
    if names.isdisjoint(found) or int(row["step"]) < first:
        return row
    return row | dict.fromkeys(names, "") if set(found) - names else None


def _metrics_of_step(row: Mapping[Any, Any]) -> list[str]:
    """Return the metrics that have a value in the row of a step; none for other rows."""
    if not (row.get("step") or "").isdecimal():
        return []
    return [name for name, value in row.items() if value and name is not None and name not in _FIXED_COLUMNS]


def _is_epoch(row: Mapping[Any, Any]) -> bool:
    return bool(row.get("epoch")) and not row.get("step")


def _is_before(epoch: str, other: int) -> bool:
    return not epoch.isdecimal() or int(epoch) < other


def _column(name: str) -> str:
    is_reserved = name in _FIXED_COLUMNS
    return f"'{name}" if name.lstrip(" ").startswith(_FORMULA_STARTS) or is_reserved else name
