"""A compact copy of the journal that opens fast: numbers as binary tables, other lines as file offsets.

The folder `journal.index` contains a table for each set of numbers that are recorded together (one row of
doubles per event), `lines.bin` (the offset of every other line in the journal) and `mark.bin` (how much of
the journal is indexed, and a checksum of its content there, in case the journal was replaced). The mark is
written last: anything after it that a crash left behind is read from the journal instead.
The journal is authoritative: an index that is missing or does not match is rebuilt from it.
"""

from __future__ import annotations

import json
import os
import zlib
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..events import KINDS, Event
from .codec import MAX_LINE_BYTES, Entry
from .lines import read_lines

FOLDER = "journal.index"
LINES = "lines.bin"
MARK = "mark.bin"
SUFFIX = ".table"
# Beyond this number of tables, each new metric gets its own table, so that a run cannot create thousands.
_MAX_SHARED_TABLES = 64
_FIXED = {
    "metrics": ("id", "time_s", "epoch", "step"),
    "resources": ("id", "time_s"),
    "progress": ("id", "time_s", "epoch", "step", "num_steps"),
}

_FLUSH_EVERY = 1 << 16
# An index of another version is rebuilt: version 1 accepted lines with wrong numbers.
_VERSION = 2
# The first and the last line contain timestamps, so no two journals share both ends.
_FINGERPRINT_BYTES = 512


class Mark(NamedTuple):
    """How much is indexed: the number of the last entry, and the size of the journal up to its end."""

    last_id: int
    num_bytes: int


class Header(NamedTuple):
    """The kind, rank and column names of a table."""

    kind: str
    rank: int
    columns: tuple[str, ...]

    @property
    def num_fixed(self) -> int:
        """The number of columns before those of the metrics or readings."""
        return len(_FIXED[self.kind])


class Index:
    """Write the index of a journal, in batches."""

    def __init__(self, folder: Path, journal: Path) -> None:
        self._folder = folder
        self._journal = journal
        self.damaged: list[int] = []  # where `extend` found damaged lines
        # Without parents: a folder that was renamed during the run is not created again.
        self._folder.mkdir(exist_ok=True)
        self._paths = {header: path for path, header, _ in tables(folder)}
        self._rows: dict[Header, array[float]] = {}
        self._lines: array[int] = array("q")

    def add(self, entry: Entry, *, offset: int, length: int) -> None:
        """Add an entry whose line starts at `offset` in the journal."""
        rows = list(rows_of(entry, split=len(self._paths) >= _MAX_SHARED_TABLES))
        is_new = False
        for header, values in rows:
            is_new = is_new or (header not in self._rows and header not in self._paths)
            self._rows.setdefault(header, array("d")).extend(values)
        # The first line of each resources table is kept as well: it contains the names of the devices.
        if not rows or (is_new and entry.event.kind == "resources"):
            code = KINDS.index(entry.event.kind) if entry.event.kind in KINDS else -1
            self._lines.extend((entry.id, offset, length, code))

    def flush(self, mark: Mark) -> None:
        """Write what was added, then the mark."""
        for header, rows in self._rows.items():
            if header not in self._paths:
                self._paths[header] = self._create_table(header)
            _append(self._paths[header], rows.tobytes())
        if self._lines:
            _append(self._folder / LINES, self._lines.tobytes())
        self._rows, self._lines = {}, array("q")
        self._write_mark(mark)

    def extend(self, mark: Mark) -> Mark:
        """Index the journal from a mark to its end, and return the new mark."""
        last_id, num_bytes = mark
        for count, line in enumerate(
            read_lines(self._journal, mark.num_bytes, last_id=mark.last_id), start=1
        ):
            num_bytes = line.end
            if line.entry is not None:
                last_id = line.entry.id
                self.add(line.entry, offset=line.offset, length=line.end - line.offset)
            elif line.is_damaged:
                self.damaged.append(line.offset)
            if count % _FLUSH_EVERY == 0:
                self.flush(Mark(last_id, num_bytes))
        self.flush(Mark(last_id, num_bytes))
        return Mark(last_id, num_bytes)

    def _write_mark(self, mark: Mark) -> None:
        content = array("q", [*mark, _fingerprint(self._journal, mark.num_bytes)]).tobytes()
        # In place, without truncating: a reader must never find the file empty.
        handle = os.open(self._folder / MARK, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.write(handle, content + array("q", [zlib.crc32(content, _VERSION)]).tobytes())
        finally:
            os.close(handle)

    def _create_table(self, header: Header) -> Path:
        path = self._folder / f"{len(self._paths):05d}{SUFFIX}"
        text = json.dumps(header._asdict()).encode()
        _append(path, text + b" " * (-(len(text) + 1) % 8) + b"\n")  # rows are aligned to 8 bytes
        return path


def read_mark(folder: Path, journal: Path) -> Mark | None:
    """Return the mark, or None if the index is unusable or belongs to a different journal."""
    try:
        content = (folder / MARK).read_bytes() if (folder / MARK).is_file() else b""
    except OSError:
        return None
    if len(content) != 32 or array("q", content[24:])[0] != zlib.crc32(content[:24], _VERSION):
        return None
    last_id, num_bytes, fingerprint = array("q", content[:24])
    return Mark(last_id, num_bytes) if _fingerprint(journal, num_bytes) == fingerprint else None


def _fingerprint(journal: Path, num_bytes: int) -> int:
    """Return a checksum of the start of a journal and of the bytes before an offset."""
    with open(journal, "rb") as file:
        first = file.read(min(_FINGERPRINT_BYTES, num_bytes))
        file.seek(max(num_bytes - _FINGERPRINT_BYTES, 0))
        return zlib.crc32(file.read(min(_FINGERPRINT_BYTES, num_bytes)), zlib.crc32(first))


def tables(folder: Path) -> Iterator[tuple[Path, Header, int]]:
    """Yield each table with its header and the byte offset of its first row."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        if not path.is_file():
            continue
        with open(path, "rb") as file:
            line = file.readline(MAX_LINE_BYTES)
        header = _parse_header(line)
        if header is not None:
            yield path, header, len(line)


def _parse_header(line: bytes) -> Header | None:
    """Return the header of a table, or None if a crash interrupted its creation: then it has no rows."""
    try:
        found: dict[str, Any] = json.loads(line)
        kind, rank, columns = found["kind"], found["rank"], found["columns"]
        fixed = _FIXED[kind]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    names: tuple[Any, ...] = tuple(columns) if isinstance(columns, list) else ()
    is_valid = line.endswith(b"\n") and type(rank) is int and names[: len(fixed)] == fixed
    return Header(kind, rank, names) if is_valid and all(isinstance(name, str) for name in names) else None


def truncate(folder: Path, mark: Mark) -> None:
    """Remove everything after the mark, so that writing can continue from there."""
    for path, header, start in list(tables(folder)):
        _truncate(path, "d", start, width=len(header.columns), last_id=mark.last_id)
    if (folder / LINES).exists():
        _truncate(folder / LINES, "q", 0, width=4, last_id=mark.last_id)


def _truncate(path: Path, code: str, start: int, *, width: int, last_id: int) -> None:
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


def rows_of(entry: Entry, *, split: bool = False) -> Iterator[tuple[Header, list[float]]]:
    """Yield the table rows of an entry that contains only numbers; `split` yields one row per metric."""
    event, data = entry.event, entry.event.data
    fixed = [entry.id, event.time_s]
    if event.kind == "metrics":
        metrics = data.get("metrics")
        if not isinstance(metrics, Mapping) or not metrics:
            return
        fixed += [_number(data.get("epoch")), _number(data.get("step"))]
        for part in [{name: value} for name, value in metrics.items()] if split else [metrics]:
            yield _header(event, *part), [*fixed, *(_number(value) for value in part.values())]
    elif event.kind == "resources":
        leaves = dict(_leaves("", data))
        yield _header(event, *leaves), [*fixed, *leaves.values()]
    elif event.kind == "progress":
        yield _header(event), [*fixed, *(_number(data.get(name)) for name in ("epoch", "step", "num_steps"))]


def _header(event: Event, *names: str) -> Header:
    return Header(event.kind, event.rank, (*_FIXED[event.kind], *names))


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield the numbers in nested data with their dotted names.

    >>> dict(_leaves("", {"cpu": 5, "gpus": [{"name": "A", "load": 9.0}]}))
    {'cpu': 5.0, 'gpus.0.load': 9.0}
    """
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(f"{prefix}.{name}" if prefix else str(name), item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _leaves(f"{prefix}.{index}", item)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield prefix, _number(value)


def _number(value: Any) -> float:
    if type(value) is float:
        return value
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")
