"""Reading the journal of a run, while it is written or long after."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flodl.core.errors import MonitorError
from flodl.monitor.events import KINDS

from . import index
from .claim import claim
from .lines import FILE, Entry, decode, whole_lines

if TYPE_CHECKING:
    import numpy as np

_PATIENCE = 20
_END_BYTES = 1 << 16


def read(run_dir: str | os.PathLike[str], *, after: int = 0) -> Iterator[Entry]:
    """Give the entries of a journal in order, those after number `after`; damaged lines are skipped."""
    for line, _ in whole_lines(journal_file(run_dir)):
        entry = decode(line)
        if entry is not None and entry.id > after:
            yield entry


def journal_file(run: str | os.PathLike[str]) -> Path:
    """Find the journal of a run, given its folder or the file itself."""
    path = Path(run)
    found = path / FILE if path.is_dir() else path
    if found.is_file():
        return found
    where = "has no journal" if path.is_dir() else "is not there"
    nearby = sorted(str(inner.parent) for inner in path.glob(f"*/{FILE}")) if path.is_dir() else []
    advice = (
        f"Its folders {', '.join(nearby[:3])} have one: name one of them."
        if nearby
        else "Name the folder of a run: the run_dir of Monitor(…), which has a journal.jsonl."
    )
    raise MonitorError(f"{str(path)!r} {where}. {advice}")


class Table(NamedTuple):
    """Rows of numbers that come together, as they lie on the disk."""

    header: index.Header
    rows: np.ndarray[Any, Any]


class Reader:
    """Open a journal as it stands at one moment, up to `last_id`; quickly, however long it is.

    `held` are entries after those of the file, from a run that could not write them.
    """

    def __init__(self, run: str | os.PathLike[str], *, held: Sequence[Entry] = ()) -> None:
        self.path = journal_file(run)
        self._folder = self.path.parent / index.FOLDER
        mark = _usable_mark(self._folder, self.path)
        if mark is None:
            self._folder = _rebuilt(self.path)
            if self._folder.name != index.FOLDER:
                weakref.finalize(self, _remove, self._folder, os.getpid())
            mark = index.read_mark(self._folder, self.path) or index.Mark(0, 0)
        self._mark = mark
        self.num_bytes = mark.num_bytes
        self._tail: list[Entry] = []
        for line, offset in whole_lines(self.path, mark.num_bytes):
            self.num_bytes = offset + len(line)
            entry = decode(line)
            if entry is not None and entry.id > mark.last_id:
                self._tail.append(entry)
        self._tail += held
        self.last_id = self._tail[-1].id if self._tail else mark.last_id

    @classmethod
    def of(cls, run: str | os.PathLike[str] | Reader) -> Reader:
        """Give a reader for a run that is named, or the reader that is given."""
        return run if isinstance(run, Reader) else cls(run)

    def entries(self, kinds: Collection[str], *, most: int | None = None) -> list[Entry]:
        """Give the entries of these kinds, or the last `most` of them; kinds that lie in tables have few."""
        import numpy as np

        found: list[Entry] = []
        path = self._folder / index.LINES
        if path.exists() and path.stat().st_size >= 32:
            whole = path.stat().st_size // 32
            places = np.fromfile(path, "<i8", count=whole * 4).reshape(-1, 4)
            wanted = [number for number, kind in enumerate(KINDS) if kind in kinds]
            places = places[np.isin(places[:, 3], wanted) & (places[:, 0] <= self._mark.last_id)]
            found = self._at(places[-most:] if most is not None else places)
        found += [entry for entry in self._tail if entry.event.kind in kinds]
        return found if most is None else found[-most:]

    def tables(self, kind: str, *, rank: int | None = None) -> list[Table]:
        """Give the tables of a kind, with what is not in the index yet as tables of their own."""
        import numpy as np

        found = []
        for path, header, start in index.tables(self._folder):
            if header.kind != kind or (rank is not None and header.rank != rank):
                continue
            width = len(header.columns)
            num_rows = (path.stat().st_size - start) // (8 * width)
            if num_rows:
                rows = np.memmap(path, "<f8", mode="r", offset=start, shape=(num_rows, width))
                found.append(Table(header, _until(rows, self._mark.last_id)))
        recent: dict[index.Header, list[list[float]]] = {}
        for entry in self._tail:
            for header, row in index.rows_of(entry):
                if header.kind == kind and (rank is None or header.rank == rank):
                    recent.setdefault(header, []).append(row)
        return found + [Table(header, np.array(rows)) for header, rows in recent.items()]

    def last_time_s(self) -> float | None:
        """Give when the last event was told; a copy of the file has another time, and its lines have not."""
        if self._tail:
            return self._tail[-1].event.time_s
        with open(self.path, "rb") as file:
            file.seek(max(self.num_bytes - _END_BYTES, 0))
            lines = file.read(min(self.num_bytes, _END_BYTES)).splitlines()
        found = (decode(line) for line in reversed(lines))
        return next((entry.event.time_s for entry in found if entry is not None), None)

    def _at(self, places: np.ndarray[Any, Any]) -> list[Entry]:
        found = []
        with open(self.path, "rb") as file:
            for _, offset, length, _ in places.tolist():
                file.seek(offset)
                entry = decode(file.read(length))
                if entry is not None:
                    found.append(entry)
        return found


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child, whose parent still reads it
        shutil.rmtree(folder, ignore_errors=True)


def _until(rows: np.ndarray[Any, Any], last_id: int) -> np.ndarray[Any, Any]:
    import numpy as np

    if rows[-1, 0] <= last_id:
        return rows
    return rows[: int(np.searchsorted(rows[:, 0], last_id, side="right"))]


def _usable_mark(folder: Path, journal: Path) -> index.Mark | None:
    """Give the mark of an index that fits the journal; one that is just being written is read again."""
    for _ in range(_PATIENCE):
        mark = index.read_mark(folder, journal)
        if mark is not None:
            return mark
        if not folder.exists():
            return None
        time.sleep(0.005)
    return None


def _rebuilt(journal: Path) -> Path:
    """Make the index again: beside the journal if nobody writes there, else in a temporary folder."""
    try:
        made = Path(tempfile.mkdtemp(prefix=f".{index.FOLDER}.", dir=journal.parent))
    except OSError:
        made = Path(tempfile.mkdtemp(prefix="flodl-"))
    index.Index(made, journal).extend(index.Mark(0, 0))
    home = journal.parent / index.FOLDER
    try:
        with open(journal, "rb") as file:
            if claim(file.fileno()):
                shutil.rmtree(home, ignore_errors=True)
                return made.rename(home)
    except OSError:
        pass
    return made
