"""The journal on the disk: one file and its index; what cannot be written waits in memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from flodl.core.errors import MonitorError
from flodl.monitor.events import Event

from . import index
from .claim import claim
from .lines import FILE, Entry, encode
from .reader import Reader

_RETRY_S = 5.0
# Some 100 MB; beyond it, every second one of what comes often goes.
_MOST_HELD = 200_000
_FREQUENT = ("metrics", "progress", "resources", "gc", "sync")


class Store:
    """Append entries to the journal of a folder, whatever happens to the disk.

    A full disk does not end a journal: entries are `held` and tried again every few seconds. A journal that
    somebody deletes is saved from its open file into a temporary folder, and goes on there.
    """

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir
        self.held: list[Entry] = []
        self.num_lost = 0
        self._news: list[Event] = []
        self._batch: list[Entry] = []
        self._lines: list[bytes] = []
        self._waiting_bytes = 0
        self._tried_s = 0.0
        self._wants_index = False
        self._file = open(run_dir / FILE, "a+b", buffering=0)  # noqa: SIM115 - closed by close()
        try:
            _take(self._file.fileno(), run_dir)
            self._num_bytes = _end_last_line(self._file.fileno(), run_dir / FILE)
            self._index: index.Index | None
            self._index, self.last_id = _continued(run_dir)
        except BaseException:
            self._file.close()
            raise

    def put(self, entry: Entry) -> None:
        """Take an entry for the next `commit`."""
        line = encode(entry)
        if self._index is not None and not self.held:
            self._index.add(entry, offset=self._num_bytes + self._waiting_bytes, length=len(line))
        self._batch.append(entry)
        self._lines.append(line)
        self._waiting_bytes += len(line)

    def commit(self) -> None:
        """Write what was put; if that cannot be, hold it."""
        batch, content = self._batch, b"".join(self._lines)
        self._batch, self._lines, self._waiting_bytes = [], [], 0
        if self.held:
            self._hold(batch)
            if time.monotonic() - self._tried_s >= _RETRY_S:
                self.retry()
            return
        try:
            self._append(content)
        except OSError as error:
            self._index, self._wants_index = None, False
            self._hold(batch)
            self._tried_s = time.monotonic()
            self._tell(
                f"the journal in {self.folder} cannot be written: {error.strerror or error}. What happens is "
                "kept in memory and tried again; page and exports of this program show it, others do not.",
                "error",
            )
            return
        self._flush_index(batch)

    def retry(self) -> None:
        """Try to write what is held."""
        if not self.held:
            return
        try:
            self._append(b"".join(map(encode, self.held)))
        except OSError:
            self._tried_s = time.monotonic()
            return
        self.held = []
        lost = f", but for {self.num_lost} readings within epochs" if self.num_lost else ""
        self._tell(f"the journal in {self.folder} is written again; nothing is missing{lost}.", "info")
        self._begin_index()

    def news(self) -> Iterator[Event]:
        """Give what people should know about the journal itself, each once."""
        while self._news:
            yield self._news.pop(0)

    def reader(self) -> Reader:
        """Open the journal as it stands, with what is held."""
        return Reader(self.folder, held=tuple(self.held))

    def close(self) -> None:
        """Let the file go; what is held stays readable."""
        with contextlib.suppress(OSError):
            os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        """Let the file go without a word: it is another process's."""
        self._file.close()

    def _append(self, content: bytes) -> None:
        handle = self._file.fileno()
        if os.fstat(handle).st_nlink == 0:
            self._move()
            handle = self._file.fileno()
        try:
            rest = content
            while rest:
                rest = rest[os.write(handle, rest) :]
        except OSError:
            # No half line stays: the whole batch comes again.
            with contextlib.suppress(OSError):
                os.ftruncate(handle, self._num_bytes)
            raise
        self._num_bytes += len(content)

    def _move(self) -> None:
        """Go on in a temporary folder with a copy of a journal that was deleted under us."""
        folder = Path(tempfile.mkdtemp(prefix="flodl-rescued-"))
        file = open(folder / FILE, "a+b", buffering=0)  # noqa: SIM115 - takes the place of the old one
        try:
            self._file.seek(0)
            shutil.copyfileobj(self._file, file, 1 << 20)
            _take(file.fileno(), folder)
        except BaseException:
            file.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._tell(f"{self.folder} was deleted: the whole journal goes on in {folder}.", "error")
        self._file.close()
        self._file, self.folder = file, folder
        self._index, self._wants_index = None, True

    def _flush_index(self, batch: list[Entry]) -> None:
        if self._index is not None:
            try:
                self._index.flush(index.Mark(batch[-1].id, self._num_bytes))
            except OSError:  # the disk, or somebody deleted it: it is made again, once
                self._index, self._wants_index = None, True
        if self._wants_index:
            self._begin_index()

    def _begin_index(self) -> None:
        self._wants_index = False
        # Without an index the journal is as good, only slower to open.
        with contextlib.suppress(OSError):
            self._index, _ = _continued(self.folder)

    def _hold(self, batch: list[Entry]) -> None:
        self.held += batch
        if len(self.held) <= _MOST_HELD:
            return
        kept, seen = [], dict.fromkeys(_FREQUENT, 0)
        for entry in self.held:
            kind = entry.event.kind
            if kind in seen:
                seen[kind] += 1
            if kind not in seen or seen[kind] % 2:
                kept.append(entry)
        self.num_lost += len(self.held) - len(kept)
        self.held = kept

    def _tell(self, message: str, level: str) -> None:
        self._news.append(Event("alert", {"message": message, "level": level}))


def _take(handle: int, run_dir: Path) -> None:
    if not claim(handle):
        raise MonitorError(
            f"the journal in {str(run_dir)!r} is being written by another run. "
            "Give each run a folder of its own, or wait until the other has ended."
        )


def _end_last_line(handle: int, path: Path) -> int:
    """End a line that a crash cut short, so that the next one begins on its own; give the size."""
    size = path.stat().st_size
    if size:
        with open(path, "rb") as file:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                size += os.write(handle, b"\n")
    return size


def _continued(run_dir: Path) -> tuple[index.Index, int]:
    """Give the index of an existing journal, brought up to its end, and its last number."""
    folder = run_dir / index.FOLDER
    mark = index.read_mark(folder, run_dir / FILE)
    if mark is None:
        shutil.rmtree(folder, ignore_errors=True)
        mark = index.Mark(0, 0)
    else:
        index.cut(folder, mark)
    twin = index.Index(folder, run_dir / FILE)
    return twin, twin.extend(mark).last_id
