"""One run that the server shows: a run of this process, or a journal that another process writes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from flodl.core.errors import FlodlError, MonitorError
from flodl.core.metric_modes import Mode

from ..journal import Journal, Reader, journal_file
from ..snapshot import (
    graph_svg,
    latest_progress,
    metric_series,
    snapshot,
    status,
    summary,
    unreadable_summary,
)

_CACHED_S = 2.0
_T = TypeVar("_T")


class RunSource:
    """One run, read from its journal on request."""

    def __init__(
        self,
        run: str | os.PathLike[str] | Journal,
        *,
        elapsed_s: Callable[[], float] | None = None,
    ) -> None:
        self._journal = run if isinstance(run, Journal) else None
        self.path = run.run_dir if isinstance(run, Journal) else journal_file(run)
        self.total_epochs = 0
        self._elapsed_s = elapsed_s  # since the start, from a monotonic clock
        self._cached: dict[int, tuple[float, int, dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._summarized: tuple[tuple[int, int | None], dict[str, Any]] | None = None

    def state(self, rank: int = 0) -> dict[str, Any]:
        """Return the state for one rank; it is cached for requests that come at the same time."""
        cached_s, version, state = self._cached.get(rank, (0.0, -1, {}))
        current_version = self._version()
        if version != current_version or time.monotonic() - cached_s > _CACHED_S:
            state = self._read(
                lambda reader: _with_progress(snapshot(reader, rank=rank, live=self._live), reader)
            )
            self._cached = {rank: (time.monotonic(), current_version, state)}
        self.total_epochs = state["status"]["total_epochs"]
        return {**state, "status": self._with_elapsed(state["status"])}

    def status(self, rank: int = 0) -> dict[str, Any]:
        """Return only the status."""
        return self._with_elapsed(self._read(lambda reader: status(reader, rank=rank, live=self._live)))

    def summary(self, modes: Mapping[str, Mode]) -> dict[str, Any]:
        """Return the run in a few numbers; those of a run that has ended are read once.

        As long as its journal does not change, the same dict is returned: do not modify it.
        """
        with self._lock:  # requests at the same time read it once
            try:
                written = self.path.stat() if self._journal is None else None
                version = (self._version(), written and written.st_mtime_ns)
                if self._summarized is None or self._summarized[0] != version:
                    found = summary(self._reader(), live=self._live, modes=modes)
                    if found["state"] in ("running", "empty"):
                        return found
                    self._summarized = (version, found)
                return self._summarized[1]
            except (FlodlError, OSError, ValueError) as error:
                return unreadable_summary(self.folder.name, str(error))

    def has_ended(self) -> bool:
        """Return whether the run has recorded its end."""
        entries = self._read(lambda reader: reader.entries({"run_start", "run_end"}))
        return bool(entries) and entries[-1].event.kind == "run_end"

    def last_id(self) -> int:
        """Return the number of the last entry in the journal."""
        return self._reader().last_id if self._journal is None else self._journal.last_id

    def ranks(self) -> list[int]:
        """Return the ranks that have recorded anything."""
        return self._read(_ranks)

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return (self.path if self._journal is not None else self.path.parent).resolve()

    def points(self, *, rank: int, start: float | None, end: float | None, max_points: int) -> dict[str, Any]:
        """Return the points between two steps in more detail."""
        return self._read(
            lambda reader: metric_series(reader, rank=rank, start=start, end=end, max_points=max_points)
        )

    def graph_svg(self) -> str | None:
        """Return the SVG of the architecture, if there is one."""
        return self._read(graph_svg)

    @property
    def _live(self) -> bool | None:
        return None if self._journal is None else True

    def _read(self, look_up: Callable[[Reader], _T]) -> _T:
        """Call `look_up` with a reader, and once more if the journal is deleted and rescued meanwhile."""
        try:
            return look_up(self._reader())
        except (OSError, MonitorError):
            if self._journal is None:
                raise
            return look_up(self._reader())

    def _reader(self) -> Reader:
        return Reader(self.path) if self._journal is None else self._journal.reader()

    def _version(self) -> int:
        """Return a number that changes with the journal."""
        if self._journal is None:
            return self.path.stat().st_size
        self._journal.flush()
        return self._journal.last_id

    def _with_elapsed(self, current: dict[str, Any]) -> dict[str, Any]:
        if self._elapsed_s is None or current.get("elapsed_s") is not None:
            return current
        return {**current, "elapsed_s": current["earlier_s"] + self._elapsed_s()}


def _ranks(reader: Reader) -> list[int]:
    found = {entry.event.rank for entry in reader.entries({"run_start", "epoch"})}
    for kind in ("metrics", "resources", "progress"):
        found |= {table.header.rank for table in reader.tables(kind)}
    return sorted(found)


def _with_progress(state: dict[str, Any], reader: Reader) -> dict[str, Any]:
    """Add the step of each rank within its epoch; the step of the whole run becomes `global_step`."""
    ranks = []
    for record in state["ranks"]:
        progress = latest_progress(reader, rank=record["rank"])
        in_epoch = {name: value for name, value in progress.items() if name in ("epoch", "step", "num_steps")}
        in_run = {"global_step": record["step"]} if record["metrics"] and "step" in record else {}
        ranks.append(_with_integers({**record, **in_run, **in_epoch}))
    return {**state, "progress": _with_integers(state["progress"]), "ranks": ranks}


def _with_integers(record: dict[str, Any]) -> dict[str, Any]:
    """Convert counts to integers: the tables of the journal contain only floats."""
    counts = {
        name: record[name] for name in ("id", "epoch", "step", "num_steps", "global_step") if name in record
    }
    return record | {name: int(value) for name, value in counts.items() if float(value).is_integer()}
