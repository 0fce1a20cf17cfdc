"""The journal on disk: one file and its index; entries that cannot be written stay pending in memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from flodl.core.errors import MonitorError

from ..events import Event
from . import index
from .codec import FILE, MAX_LINE_BYTES, Entry, encode
from .lines import describe_damage
from .reader import Reader
from .writer_lock import acquire_writer_lock

_RETRY_S = 5.0
# About 100 MB; beyond it, every second entry of the frequent kinds is dropped.
_MAX_PENDING = 200_000
_FREQUENT = ("metrics", "progress", "resources", "gc", "sync")


class Store:
    """Append entries to the journal of a folder, and survive disk failures.

    If the disk is full, entries stay `pending` and writing is retried every few seconds. If the journal is
    deleted, its content is recovered from the open file into a temporary folder, and writing continues there.
    """

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir
        self.pending: list[Entry] = []
        self.num_dropped = 0
        self._alerts: list[Event] = []
        self._batch: list[Entry] = []
        self._lines: list[bytes] = []
        self._batch_bytes = 0
        self._last_attempt_s = 0.0
        self._needs_index = False
        _check_regular(run_dir / FILE)
        self._file = open(run_dir / FILE, "a+b", buffering=0)  # noqa: SIM115 - closed by close()
        try:
            _lock(self._file.fileno(), run_dir)
            self._num_bytes = _end_last_line(self._file.fileno(), run_dir / FILE)
            self._index: index.Index | None
            self._index, self.last_id = _open_index(run_dir)
            if self._index.damaged:
                damage = describe_damage(run_dir / FILE, self._index.damaged)
                self._alert(f"{run_dir / FILE}: skipped {damage}.", "warning")
        except BaseException:
            self._file.close()
            raise

    def put(self, entry: Entry) -> Entry:
        """Add an entry to the next `commit`; return it, or the alert that replaces it."""
        entry, line = _encode(entry)
        if self._index is not None and not self.pending:
            self._index.add(entry, offset=self._num_bytes + self._batch_bytes, length=len(line))
        self._batch.append(entry)
        self._lines.append(line)
        self._batch_bytes += len(line)
        return entry

    def commit(self) -> None:
        """Write the batch; keep it pending if that fails."""
        batch, content = self._batch, b"".join(self._lines)
        self._batch, self._lines, self._batch_bytes = [], [], 0
        if self.pending:
            self._keep(batch)
            if time.monotonic() - self._last_attempt_s >= _RETRY_S:
                self.retry()
            return
        try:
            self._append(content)
        except OSError as error:
            self._index, self._needs_index = None, False
            self._keep(batch)
            self._last_attempt_s = time.monotonic()
            self._alert(
                f"cannot write the journal in {self.folder}: {error.strerror or error}. Events are kept in "
                "memory and writing is retried. The page and exports of this process show them; other "
                "processes do not see them.",
                "error",
            )
            return
        self._flush_index(batch)

    def retry(self) -> None:
        """Try to write the pending entries."""
        if not self.pending:
            return
        try:
            self._append(b"".join(_encode(entry)[1] for entry in self.pending))
        except OSError:
            self._last_attempt_s = time.monotonic()
            return
        self.pending = []
        dropped = f" except {self.num_dropped} readings within epochs" if self.num_dropped else ""
        self._alert(f"the journal in {self.folder} is writable again; nothing is missing{dropped}.", "info")
        self._restore_index()

    def take_alerts(self) -> Iterator[Event]:
        """Yield alerts about the journal itself, each once."""
        while self._alerts:
            yield self._alerts.pop(0)

    def reader(self) -> Reader:
        """Return a reader for the current journal, including pending entries."""
        if not self._file.closed and self._is_deleted():
            with contextlib.suppress(OSError):
                self._move()
        return Reader(self.folder, pending=tuple(self.pending))

    def sync(self) -> None:
        """Wait until everything written is on disk, unless the disk fails."""
        with contextlib.suppress(OSError):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; pending entries stay readable."""
        self.sync()
        self._file.close()

    def abandon(self) -> None:
        """Close the file without flushing: it belongs to another process."""
        self._file.close()

    def _append(self, content: bytes) -> None:
        if self._is_deleted():
            self._move()
        handle = self._file.fileno()
        try:
            rest = content
            while rest:
                rest = rest[os.write(handle, rest) :]
        except OSError:
            # Remove a partial write: the whole batch is written again later.
            with contextlib.suppress(OSError):
                os.ftruncate(handle, self._num_bytes)
            raise
        self._num_bytes += len(content)

    def _is_deleted(self) -> bool:
        return os.fstat(self._file.fileno()).st_nlink == 0

    def _move(self) -> None:
        """Copy a deleted journal from its open file to a temporary folder, and continue there."""
        folder = Path(tempfile.mkdtemp(prefix="flodl-rescued-"))
        file = open(folder / FILE, "a+b", buffering=0)  # noqa: SIM115 - replaces the old file
        try:
            self._file.seek(0)
            shutil.copyfileobj(self._file, file, 1 << 20)
            _lock(file.fileno(), folder)
        except BaseException:
            file.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._alert(f"{self.folder} was deleted. The complete journal continues in {folder}.", "error")
        self._file.close()
        self._file, self.folder = file, folder
        self._index, self._needs_index = None, True

    def _flush_index(self, batch: list[Entry]) -> None:
        if self._index is not None:
            try:
                self._index.flush(index.Mark(batch[-1].id, self._num_bytes))
            except OSError:  # the disk failed or the index was deleted: rebuild it once
                self._index, self._needs_index = None, True
        if self._needs_index:
            self._restore_index()

    def _restore_index(self) -> None:
        self._needs_index = False
        # Without an index the journal still works; it only opens more slowly.
        with contextlib.suppress(OSError):
            self._index, _ = _open_index(self.folder)

    def _keep(self, batch: list[Entry]) -> None:
        self.pending += batch
        if len(self.pending) <= _MAX_PENDING:
            return
        kept, seen = [], dict.fromkeys(_FREQUENT, 0)
        for entry in self.pending:
            kind = entry.event.kind
            if kind in seen:
                seen[kind] += 1
            if kind not in seen or seen[kind] % 2:
                kept.append(entry)
        self.num_dropped += len(self.pending) - len(kept)
        self.pending = kept

    def _alert(self, message: str, level: str) -> None:
        self._alerts.append(Event("alert", {"message": message, "level": level}))


def _check_regular(path: Path) -> None:
    if path.exists() and not path.is_file() and not path.is_dir():
        raise MonitorError(f"{str(path)!r} is not a regular file. Remove it, or use a different folder.")


def _encode(entry: Entry) -> tuple[Entry, bytes]:
    """Encode an entry. One that cannot be read again later is replaced by an alert that says so."""
    try:
        line = encode(entry)
        problem = "" if len(line) <= MAX_LINE_BYTES else f"has {len(line)} bytes"
    except Exception as error:  # any object may be part of an event
        line, problem = b"", f"cannot be written: {type(error).__name__}: {error}"[:500]
    if not problem:
        return entry, line
    event = entry.event
    text = f"an event of the kind {str(event.kind)[:40]!r} {problem}. It is not in the journal."
    entry = Entry(entry.id, Event("alert", {"message": text, "level": "error"}, event.time_s, event.rank))
    return entry, encode(entry)


def _lock(handle: int, run_dir: Path) -> None:
    if not acquire_writer_lock(handle):
        raise MonitorError(
            f"the journal in {str(run_dir)!r} is in use by another run. "
            "Use a separate folder for each run, or wait until the other run has ended."
        )


def _end_last_line(handle: int, path: Path) -> int:
    """Terminate a line that a crash truncated, so that the next line starts cleanly; return the size."""
    size = path.stat().st_size
    if size:
        with open(path, "rb") as file:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                size += os.write(handle, b"\n")
    return size


def _open_index(run_dir: Path) -> tuple[index.Index, int]:
    """Return the index of a journal, extended to its end, and the number of the last entry."""
    folder = run_dir / index.FOLDER
    mark = index.read_mark(folder, run_dir / FILE)
    if mark is None:
        shutil.rmtree(folder, ignore_errors=True)
        mark = index.Mark(0, 0)
    else:
        index.truncate(folder, mark)
    opened = index.Index(folder, run_dir / FILE)
    return opened, opened.extend(mark).last_id
