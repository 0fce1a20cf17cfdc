"""Read the journal of a run, while it is being written or afterwards."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flodl.core.errors import MonitorError
from flodl.core.files import expand_user

from . import index
from .codec import FILE, MAX_LINE_BYTES, Entry, decode
from .line_positions import LinePosition, LinePositions
from .lines import read_lines
from .missing import no_journal
from .writer_lock import acquire_writer_lock

if TYPE_CHECKING:
    import numpy as np

MARK_ATTEMPTS = 20
# The last line is mostly short. A longer one, or damaged lines, need more.
_TAIL_BYTES = (1 << 12, 1 << 16)


def read(run_dir: str | os.PathLike[str], *, after: int = 0) -> Iterator[Entry]:
    """Yield the entries of a journal with numbers greater than `after`, in order; skip damaged lines.

    A file without a single readable line is an error, unless its run has just started.
    """
    path = journal_file(run_dir)
    is_journal = False
    for line in read_lines(path):
        if line.entry is not None:
            is_journal = True
            if line.entry.id > after:
                yield line.entry
    if not is_journal and not _may_be_starting(path):
        raise MonitorError(
            f"{path} is not a journal: none of its lines can be read. "
            "Pass the folder of a run, which has a journal.jsonl."
        )


def _may_be_starting(path: Path) -> bool:
    """Return whether a file may be the journal of a run that has not written its first line yet."""
    with open(path, "rb") as file:
        first = file.read(64)
        return not first or (first.startswith(b'{"id":') and b"\n" not in first + file.read(1 << 20))


def journal_file(run: str | os.PathLike[str]) -> Path:
    """Return the journal of a run, given its folder or the file itself."""
    path = expand_user(run)
    found = path / FILE if path.is_dir() else path
    if found.is_file():
        return found
    if found.exists():
        raise MonitorError(f"{str(found)!r} is not a regular file. Pass the folder of a run.")
    raise no_journal(path)


class Table(NamedTuple):
    """Rows of numbers that were recorded together, as stored on disk."""

    header: index.Header
    rows: np.ndarray[Any, Any]


class Reader:
    """A view of a journal at one moment, up to `last_id`; it opens quickly even if the journal is long.

    `pending` are entries after those of the file, from a run that could not write them.
    """

    def __init__(self, run: str | os.PathLike[str], *, pending: Sequence[Entry] = ()) -> None:
        self.path = journal_file(run)
        self._folder = self.path.parent / index.FOLDER
        mark = _read_usable_mark(self._folder, self.path)
        if mark is None:
            self._folder = _rebuild(self.path)
            if self._folder.name != index.FOLDER:
                weakref.finalize(self, _remove, self._folder, os.getpid())
            mark = index.read_mark(self._folder, self.path) or index.Mark(0, 0)
        self._mark = mark
        self.num_bytes = mark.num_bytes
        self.num_unreadable = 0  # indexed lines that were damaged later, as far as they were needed
        self._tail: list[Entry] = []
        for line in read_lines(self.path, mark.num_bytes, last_id=mark.last_id):
            self.num_bytes = line.end
            if line.entry is not None:
                self._tail.append(line.entry)
        self._tail += pending
        self.last_id = self._tail[-1].id if self._tail else mark.last_id

    @classmethod
    def of(cls, run: str | os.PathLike[str] | Reader) -> Reader:
        """Return `run` if it is a reader, else a new reader for it."""
        return run if isinstance(run, Reader) else cls(run)

    def entries(
        self, kinds: Collection[str], *, last: int | None = None, most: int | None = None
    ) -> list[Entry]:
        """Return the entries of these kinds, or the last `last` of them.

        With `most`, entries are left out evenly if there are more; those that are not indexed yet are kept.

        Of the kinds that are stored in tables, only a few entries are available.
        """
        lines = [line for line in self._positions.of(kinds) if line.id <= self._mark.last_id]
        if most is not None and len(lines) > most:
            import numpy as np

            lines = [lines[at] for at in np.linspace(0, len(lines) - 1, most).round().astype(int).tolist()]
        found = self._read_lines(lines[-last:] if last is not None else lines)
        found += [entry for entry in self._tail if entry.event.kind in kinds]
        return found if last is None else found[-last:]

    def tables(self, kind: str, *, rank: int | None = None) -> list[Table]:
        """Return the tables of a kind; entries that are not indexed yet come as separate tables."""
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

    def last_time_s(self, *, before: int | None = None) -> float | None:
        """Return the time of the last event, or of the last one before an entry that is not in a table.

        Unlike the time of the file, this does not change if the file is copied.
        """
        tail = [entry for entry in self._tail if before is None or entry.id < before]
        if tail:
            return tail[-1].event.time_s
        end = self._mark.num_bytes if self._tail else self.num_bytes
        if before is not None and before <= self._mark.last_id:
            end = next((line.offset for line in self._positions.all() if line.id == before), 0)
        with open(self.path, "rb", buffering=0) as file:
            for num_bytes in _TAIL_BYTES:
                start = max(end - num_bytes, 0)
                file.seek(start)
                for content in reversed(file.read(end - start).splitlines()):
                    if (entry := decode(content)) is not None:
                        return entry.event.time_s
        return None

    @cached_property
    def _positions(self) -> LinePositions:
        return LinePositions.read(self._folder / index.LINES)

    def _read_lines(self, lines: Sequence[LinePosition]) -> list[Entry]:
        found: list[Entry] = []
        if not lines:
            return found
        # Without a buffer, which would be filled again for every line.
        with open(self.path, "rb", buffering=0) as file:
            for id, offset, length, _ in lines:
                if 0 <= offset < self.num_bytes and 0 < length <= MAX_LINE_BYTES:
                    file.seek(offset)
                    entry = decode(file.read(length))
                    if entry is not None and entry.id == id:
                        found.append(entry)
                        continue
                self.num_unreadable += 1
        return found


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child, whose parent still reads it
        shutil.rmtree(folder, ignore_errors=True)


def _until(rows: np.ndarray[Any, Any], last_id: int) -> np.ndarray[Any, Any]:
    import numpy as np

    if rows[-1, 0] <= last_id:
        return rows
    return rows[: int(np.searchsorted(rows[:, 0], last_id, side="right"))]


def _read_usable_mark(folder: Path, journal: Path) -> index.Mark | None:
    """Return the mark of an index that matches the journal; retry while it is being written."""
    for _ in range(MARK_ATTEMPTS):
        mark = index.read_mark(folder, journal)
        if mark is not None:
            return mark
        if not folder.exists():
            return None
        time.sleep(0.005)
    return None


def _rebuild(journal: Path) -> Path:
    """Rebuild the index: next to the journal if no process writes there, else in a temporary folder."""
    try:
        rebuilt = Path(tempfile.mkdtemp(prefix=f".{index.FOLDER}.", dir=journal.parent))
    except OSError:
        rebuilt = Path(tempfile.mkdtemp(prefix="flodl-"))
    index.Index(rebuilt, journal).extend(index.Mark(0, 0))
    home = journal.parent / index.FOLDER
    try:
        with open(journal, "rb") as file:
            # The index in the folder is that of the current journal, also if an earlier one is read.
            if journal.name == FILE and acquire_writer_lock(file.fileno()):
                shutil.rmtree(home, ignore_errors=True)
                return rebuilt.rename(home)
    except OSError:
        pass
    return rebuilt
