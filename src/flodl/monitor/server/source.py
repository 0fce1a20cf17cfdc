"""What the server shows: one run or several, their own or foreign, live or long over."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..journal import Entry, Journal, Reader, complete_lines, decode, journal_file
from ..snapshot import graph_svg, latest_progress, metric_series, snapshot, status

_UNCHANGED_S = 2.0


class RunSource:
    """One run, read from its journal whenever somebody asks."""

    def __init__(
        self,
        run: str | os.PathLike[str] | Journal,
        *,
        elapsed_s: Callable[[], float] | None = None,
    ) -> None:
        self._journal = run if isinstance(run, Journal) else None
        self.path = run.run_dir if isinstance(run, Journal) else journal_file(run)
        self.total_epochs = 0
        self._elapsed_s = elapsed_s  # since the start, by a clock that nobody sets
        self._cached: dict[int, tuple[float, int, dict[str, Any]]] = {}

    def state(self, rank: int = 0) -> dict[str, Any]:
        """Give the state for one rank; several who ask at the same moment get the same."""
        made_s, version, state = self._cached.get(rank, (0.0, -1, {}))
        now_version = self._version()
        if version != now_version or time.monotonic() - made_s > _UNCHANGED_S:
            state = _placed(snapshot(self._reader(), rank=rank, live=self._live), self._reader())
            self._cached = {rank: (time.monotonic(), now_version, state)}
        self.total_epochs = state["status"]["total_epochs"]
        return {**state, "status": self._timed(state["status"])}

    def status(self, rank: int = 0) -> dict[str, Any]:
        """Give only how the run stands."""
        return self._timed(status(self._reader(), rank=rank, live=self._live))

    def has_ended(self) -> bool:
        """Say whether the run has told its end."""
        told = self._reader().entries({"run_start", "run_end"})
        return bool(told) and told[-1].event.kind == "run_end"

    def last_number(self) -> int:
        """Give the number of the last event in the journal as it stands."""
        return self._reader().last_id if self._journal is None else self._journal.last_id

    def ranks(self) -> list[int]:
        """Give the ranks that have told anything."""
        reader = self._reader()
        told = {entry.event.rank for entry in reader.entries({"run_start", "epoch"})}
        for kind in ("metrics", "resources", "progress"):
            told |= {table.header.rank for table in reader.tables(kind)}
        return sorted(told)

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return (self.path if self._journal is not None else self.path.parent).resolve()

    def points(self, *, rank: int, start: float | None, end: float | None, most: int) -> dict[str, Any]:
        """Give the points of a stretch in more detail."""
        return metric_series(self._reader(), rank=rank, start=start, end=end, max_points=most)

    def picture(self) -> str | None:
        """Give the SVG of the architecture."""
        return graph_svg(self._reader())

    @property
    def _live(self) -> bool | None:
        return None if self._journal is None else True

    def _reader(self) -> Reader:
        return Reader(self.path) if self._journal is None else self._journal.reader()

    def _version(self) -> int:
        """Give a number that changes with the journal."""
        if self._journal is None:
            return self.path.stat().st_size
        self._journal.flush()
        return self._journal.last_id

    def _timed(self, standing: dict[str, Any]) -> dict[str, Any]:
        if self._elapsed_s is None or standing.get("elapsed_s") is not None:
            return standing
        return {**standing, "elapsed_s": self._elapsed_s()}


class FollowedRuns:
    """Runs that other processes write: new lines are found by looking at the file again."""

    def __init__(self, runs: Sequence[str | os.PathLike[str]]) -> None:
        self.runs = [RunSource(run) for run in runs]
        self._path: Path = self.runs[0].path
        reader = Reader(self._path)
        self.last_id = reader.last_id
        self._offset = reader.num_bytes

    def news(self) -> list[Entry]:
        """Give what was written to the first run since the last call."""
        size = self._path.stat().st_size
        if size < self._offset:
            self._offset = 0
        batch = []
        for line, offset in complete_lines(self._path, self._offset):
            self._offset = offset + len(line)
            entry = decode(line)
            if entry is not None and entry.id > self.last_id:
                self.last_id = entry.id
                batch.append(entry)
        return batch


def told_apart(folders: Sequence[Path]) -> list[str]:
    """Give as much of the end of each path as tells it from the others.

    >>> told_apart([Path("/runs/a/s0"), Path("/runs/b/s0"), Path("/runs/b/s1")])
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


def _placed(state: dict[str, Any], reader: Reader) -> dict[str, Any]:
    """Count in whole numbers, and give the steps of a rank within its epoch beside those of the whole run."""
    ranks = []
    for record in state["ranks"]:
        place = latest_progress(reader, rank=record["rank"])
        within = {name: value for name, value in place.items() if name in ("epoch", "step", "num_steps")}
        whole = {"global_step": record["step"]} if record["metrics"] and "step" in record else {}
        ranks.append(_in_whole_numbers({**record, **whole, **within}))
    return {**state, "progress": _in_whole_numbers(state["progress"]), "ranks": ranks}


def _in_whole_numbers(record: dict[str, Any]) -> dict[str, Any]:
    """Make integers of places that are whole: tables hold nothing but floats."""
    counts = {
        name: record[name] for name in ("id", "epoch", "step", "num_steps", "global_step") if name in record
    }
    return record | {name: int(value) for name, value in counts.items() if float(value).is_integer()}
