"""The runs that the server shows: a run of this process, or journals that other processes write."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flodl.core import log

from ..journal import Entry, Journal, Reader, describe_damage, journal_file, read_lines
from ..snapshot import graph_svg, latest_progress, metric_series, snapshot, status

_CACHED_S = 2.0


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

    def state(self, rank: int = 0) -> dict[str, Any]:
        """Return the state for one rank; it is cached for requests that come at the same time."""
        cached_s, version, state = self._cached.get(rank, (0.0, -1, {}))
        current_version = self._version()
        if version != current_version or time.monotonic() - cached_s > _CACHED_S:
            state = _with_progress(snapshot(self._reader(), rank=rank, live=self._live), self._reader())
            self._cached = {rank: (time.monotonic(), current_version, state)}
        self.total_epochs = state["status"]["total_epochs"]
        return {**state, "status": self._with_elapsed(state["status"])}

    def status(self, rank: int = 0) -> dict[str, Any]:
        """Return only the status."""
        return self._with_elapsed(status(self._reader(), rank=rank, live=self._live))

    def has_ended(self) -> bool:
        """Return whether the run has recorded its end."""
        entries = self._reader().entries({"run_start", "run_end"})
        return bool(entries) and entries[-1].event.kind == "run_end"

    def last_id(self) -> int:
        """Return the number of the last entry in the journal."""
        return self._reader().last_id if self._journal is None else self._journal.last_id

    def ranks(self) -> list[int]:
        """Return the ranks that have recorded anything."""
        reader = self._reader()
        found = {entry.event.rank for entry in reader.entries({"run_start", "epoch"})}
        for kind in ("metrics", "resources", "progress"):
            found |= {table.header.rank for table in reader.tables(kind)}
        return sorted(found)

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return (self.path if self._journal is not None else self.path.parent).resolve()

    def points(self, *, rank: int, start: float | None, end: float | None, max_points: int) -> dict[str, Any]:
        """Return the points between two steps in more detail."""
        return metric_series(self._reader(), rank=rank, start=start, end=end, max_points=max_points)

    def graph_svg(self) -> str | None:
        """Return the SVG of the architecture, if there is one."""
        return graph_svg(self._reader())

    @property
    def _live(self) -> bool | None:
        return None if self._journal is None else True

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


class FollowedRuns:
    """Runs that other processes write; new lines are found by polling the file."""

    def __init__(self, runs: Sequence[str | os.PathLike[str]]) -> None:
        self.runs = [RunSource(run) for run in runs]
        self._path: Path = self.runs[0].path
        reader = Reader(self._path)
        self.last_id = reader.last_id
        self._offset = reader.num_bytes

    def poll(self) -> list[Entry]:
        """Return the entries that were written to the first run since the last call."""
        last_id = self.last_id
        if self._path.stat().st_size < self._offset:  # it was replaced
            self._offset = last_id = 0
        batch = []
        for line in read_lines(self._path, self._offset, last_id=last_id, wait_for_next=True):
            self._offset = line.end
            if line.entry is not None and line.entry.id > self.last_id:
                self.last_id = line.entry.id
                batch.append(line.entry)
            elif line.is_damaged:
                damage = describe_damage(self._path, [line.offset])
                log.warn("%s: skipped %s", self._path, damage)
        return batch


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Return the shortest end of each path that distinguishes it from the others.

    >>> distinct_names([Path("/runs/a/s0"), Path("/runs/b/s0"), Path("/runs/b/s1")])
    ['a/s0', 'b/s0', 's1']
    """

    def name(folder: Path) -> str:
        others = [other.parts for other in folders if other != folder]
        for length in range(1, len(folder.parts)):
            end = folder.parts[-length:]
            if all(other[-length:] != end for other in others):
                return "/".join(end)
        return str(folder)

    return [name(folder) for folder in folders]


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
