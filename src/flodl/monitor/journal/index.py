"""A compact twin of the journal that opens fast: numbers as binary tables, the rest as places in the file.

The folder `journal.index` holds a table for each set of numbers that come together (one row of doubles for
each event), `lines.bin` (where every other line lies in the journal) and `mark.bin` (up to where the journal
is covered, and what it looks like there: another journal may have been put in its place). The mark is
written last, so whatever a crash leaves behind it is read from the journal instead.
The journal is the truth: a folder that is missing or does not fit is made again from it.
"""

from __future__ import annotations

import json
import os
import zlib
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flodl.monitor.events import KINDS, Event

from .lines import Entry, decode, whole_lines

FOLDER = "journal.index"
LINES = "lines.bin"
MARK = "mark.bin"
SUFFIX = ".table"
# Sets of names beyond these are split into one table for each name, so that no run makes thousands of sets.
_MOST_SETS = 64
_FIXED = {
    "metrics": ("id", "time_s", "epoch", "step"),
    "resources": ("id", "time_s"),
    "progress": ("id", "time_s", "epoch", "step", "num_steps"),
}

_STEP = 1 << 16
# The first line has the moment of the start, and so has the end: no two journals have both in common.
_LOOKED_AT = 512


class Mark(NamedTuple):
    """How far the index goes: the number of the last entry, and the bytes of the journal up to its end."""

    last_id: int
    num_bytes: int


class Header(NamedTuple):
    """What the rows of a table are: their kind, whose they are, and the names of their columns."""

    kind: str
    rank: int
    columns: tuple[str, ...]

    @property
    def num_fixed(self) -> int:
        """How many columns come before those of the names."""
        return len(_FIXED[self.kind])


class Index:
    """Write the index of a journal, in batches."""

    def __init__(self, folder: Path, journal: Path) -> None:
        self._folder = folder
        self._journal = journal
        self._folder.mkdir(parents=True, exist_ok=True)
        self._paths = {header: path for path, header, _ in tables(folder)}
        self._rows: dict[Header, array[float]] = {}
        self._lines: array[int] = array("q")

    def add(self, entry: Entry, *, offset: int, length: int) -> None:
        """Take an entry whose line begins at `offset` of the journal."""
        rows = list(rows_of(entry, crowded=len(self._paths) >= _MOST_SETS))
        is_new = False
        for header, values in rows:
            is_new = is_new or (header not in self._rows and header not in self._paths)
            self._rows.setdefault(header, array("d")).extend(values)
        # The first line of each set of resources is kept, too: it has the names of the devices.
        if not rows or (is_new and entry.event.kind == "resources"):
            code = KINDS.index(entry.event.kind) if entry.event.kind in KINDS else -1
            self._lines.extend((entry.id, offset, length, code))

    def flush(self, mark: Mark) -> None:
        """Write what was added, and then how far the index goes now."""
        for header, rows in self._rows.items():
            if header not in self._paths:
                self._paths[header] = self._begin(header)
            _append(self._paths[header], rows.tobytes())
        if self._lines:
            _append(self._folder / LINES, self._lines.tobytes())
        self._rows, self._lines = {}, array("q")
        self._write_mark(mark)

    def extend(self, mark: Mark) -> Mark:
        """Bring the index from a mark up to the end of the journal, and give the new mark."""
        last_id, num_bytes = mark
        for count, (line, offset) in enumerate(whole_lines(self._journal, mark.num_bytes), start=1):
            entry = decode(line)
            num_bytes = offset + len(line)
            if entry is not None and entry.id > last_id:
                last_id = entry.id
                self.add(entry, offset=offset, length=len(line))
            if count % _STEP == 0:
                self.flush(Mark(last_id, num_bytes))
        self.flush(Mark(last_id, num_bytes))
        return Mark(last_id, num_bytes)

    def _write_mark(self, mark: Mark) -> None:
        content = array("q", [*mark, _looks(self._journal, mark.num_bytes)]).tobytes()
        # In place, without cutting the file first: a reader must never find it empty.
        handle = os.open(self._folder / MARK, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.write(handle, content + array("q", [zlib.crc32(content)]).tobytes())
        finally:
            os.close(handle)

    def _begin(self, header: Header) -> Path:
        path = self._folder / f"{len(self._paths):05d}{SUFFIX}"
        text = json.dumps(header._asdict()).encode()
        _append(path, text + b" " * (-(len(text) + 1) % 8) + b"\n")  # rows begin at a multiple of 8
        return path


def read_mark(folder: Path, journal: Path) -> Mark | None:
    """Give how far the index goes, or nothing if it cannot be used, or is that of another journal."""
    try:
        content = (folder / MARK).read_bytes()
    except OSError:
        return None
    if len(content) != 32 or array("q", content[24:])[0] != zlib.crc32(content[:24]):
        return None
    last_id, num_bytes, looks = array("q", content[:24])
    return Mark(last_id, num_bytes) if _looks(journal, num_bytes) == looks else None


def _looks(journal: Path, num_bytes: int) -> int:
    """Give a number for the beginning of a journal and for what lies before a byte of it."""
    with open(journal, "rb") as file:
        first = file.read(min(_LOOKED_AT, num_bytes))
        file.seek(max(num_bytes - _LOOKED_AT, 0))
        return zlib.crc32(file.read(min(_LOOKED_AT, num_bytes)), zlib.crc32(first))


def tables(folder: Path) -> Iterator[tuple[Path, Header, int]]:
    """Give each table with its header and the byte at which its rows begin."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        with open(path, "rb") as file:
            line = file.readline()
        try:
            header = Header(**json.loads(line))
        except (ValueError, TypeError):
            continue  # the crash came right when the table was begun: it has no rows
        yield path, header._replace(columns=tuple(header.columns)), len(line)


def cut(folder: Path, mark: Mark) -> None:
    """Take away what lies behind the mark, so that writing can go on from there."""
    for path, header, start in list(tables(folder)):
        _cut(path, "d", start, width=len(header.columns), last_id=mark.last_id)
    if (folder / LINES).exists():
        _cut(folder / LINES, "q", 0, width=4, last_id=mark.last_id)


def _cut(path: Path, code: str, start: int, *, width: int, last_id: int) -> None:
    size = 8 * width
    with open(path, "r+b") as file:
        num_rows = (os.fstat(file.fileno()).st_size - start) // size
        while num_rows:
            file.seek(start + (num_rows - 1) * size)
            if array(code, file.read(8))[0] <= last_id:
                break
            num_rows -= 1
        file.truncate(start + num_rows * size)


def _append(path: Path, content: bytes) -> None:
    with open(path, "ab", buffering=0) as file:
        file.write(content)


def rows_of(entry: Entry, *, crowded: bool = False) -> Iterator[tuple[Header, list[float]]]:
    """Give the numbers of an entry as rows, or nothing where it is more than numbers."""
    event, data = entry.event, entry.event.data
    place = [entry.id, event.time_s]
    if event.kind == "metrics":
        metrics = data.get("metrics")
        if not isinstance(metrics, Mapping) or not metrics:
            return
        place += [_number(data.get("epoch")), _number(data.get("step"))]
        for part in [{name: value} for name, value in metrics.items()] if crowded else [metrics]:
            yield _header(event, *part), [*place, *(_number(value) for value in part.values())]
    elif event.kind == "resources":
        leaves = dict(_leaves("", data))
        yield _header(event, *leaves), [*place, *leaves.values()]
    elif event.kind == "progress":
        yield _header(event), [*place, *(_number(data.get(name)) for name in ("epoch", "step", "num_steps"))]


def _header(event: Event, *names: str) -> Header:
    return Header(event.kind, event.rank, (*_FIXED[event.kind], *names))


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, float]]:
    """Give the numbers in nested data by their dotted names.

    >>> dict(_leaves("", {"cpu": 5, "gpus": [{"name": "A", "load": 9.0}]}))
    {'cpu': 5.0, 'gpus.0.load': 9.0}
    """
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(f"{prefix}.{name}" if prefix else str(name), item)
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from _leaves(f"{prefix}.{place}", item)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield prefix, float(value)


def _number(value: Any) -> float:
    if type(value) is float:
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")
