"""Writing the journal of a run: the training thread leaves an event behind, another thread writes it down."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from flodl.core import log
from flodl.core.errors import MonitorError
from flodl.monitor.events import Event

from . import index
from .claim import claim
from .lines import Entry, encode

FILE = "journal.jsonl"
_INTERVAL_S = 0.25
_STEP = 1 << 16
# The interpreter lock is given away after every few entries: a training step that wants it waits for some
# tens of microseconds, not for the whole batch. A long queue is worked off faster.
_STRETCH = 4
_BACKLOG = 4096
_YIELD_S = 5e-5

Listener = Callable[[list[Entry]], object]


class Journal:
    """Append the events of a run to `journal.jsonl` in its folder, without making the training wait.

    >>> import tempfile
    >>> from flodl.monitor.journal import read
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Journal.open(folder) as journal:
    ...         journal.write(Event("alert", {"message": "hot"}, time_s=1.0))
    ...     [(entry.id, entry.event.data["message"]) for entry in read(folder)]
    [(1, 'hot')]

    `write` is an append to a queue. Another thread writes it down a few times a second, so a process that is
    killed loses less than its last second. An existing journal is continued, and its numbers go on; only one
    process may write to it at a time.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.interval_s = _INTERVAL_S  # between two batches; keep it below a second
        self._queue: deque[Event] = deque()
        self._listeners: list[Listener] = []
        self._writing = threading.RLock()  # a listener may flush
        self._wake = threading.Event()
        self._closed = False
        self._failed = False
        self._file = open(run_dir / FILE, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        try:
            _take(self._file.fileno(), run_dir)
            self._num_bytes = _end_last_line(self._file.fileno(), run_dir / FILE)
            self._index, self.last_id = _continued(run_dir)
        except BaseException:
            self._file.close()
            raise
        self._stop = weakref.finalize(self, _stop, self._wake)
        self._thread = threading.Thread(
            target=_run, args=(weakref.ref(self), self._wake), name="flodl-journal", daemon=True
        )
        self._thread.start()

    @classmethod
    def open(cls, run_dir: str | os.PathLike[str]) -> Self:
        """Begin the journal of a run, or go on with it."""
        folder = Path(run_dir)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return cls(folder)
        except OSError as error:
            raise MonitorError(
                f"the journal in {os.fspath(run_dir)!r} cannot be written: {error.strerror or error}. "
                "Name a folder that can be made and written to."
            ) from None

    def write(self, event: Event) -> None:
        """Leave an event to be written; this only appends it to a queue."""
        self._queue.append(event)

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with every batch of entries, on the writing thread, right after it is on disk."""
        self._listeners.append(listener)
        self._wake.set()

    def flush(self, *, yielding: bool = False) -> None:
        """Write everything that was left so far, now; `yielding` makes way for other threads in between."""
        with self._writing:
            while self._queue:
                self._write_batch(yielding=yielding)

    def close(self) -> None:
        """Write the rest and let the file go; more events are ignored."""
        if self._closed:
            return
        self.flush()
        self._closed = True
        self._wake.set()
        with self._writing, contextlib.suppress(OSError):
            os.fsync(self._file.fileno())
        self._file.close()

    @property
    def closed(self) -> bool:
        """Whether the journal was closed."""
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_batch(self, *, yielding: bool) -> None:
        if self._closed or self._failed:
            self._queue.clear()
            return
        stretch = _STRETCH if yielding and len(self._queue) < _BACKLOG else _STEP
        batch: list[Entry] = []
        lines: list[bytes] = []
        while self._queue and len(batch) < _STEP:
            entry = Entry(self.last_id + 1, _settled(self._queue.popleft()))
            line = encode(entry)
            batch.append(entry)
            lines.append(line)
            self.last_id = entry.id
            self._index.add(entry, offset=self._num_bytes, length=len(line))
            self._num_bytes += len(line)
            if len(batch) % stretch == 0:
                time.sleep(_YIELD_S)
        try:
            _write_whole(self._file.fileno(), b"".join(lines))
            self._index.flush(index.Mark(self.last_id, self._num_bytes))
        except OSError as error:
            # A training is worth more than its journal.
            self._failed = True
            log.warn("the journal in %s is no longer written: %s", self.run_dir, error.strerror or error)
        for listener in tuple(self._listeners):
            self._tell(listener, batch)

    def _tell(self, listener: Listener, batch: list[Entry]) -> None:
        try:
            listener(batch)
        except Exception as error:  # the journal goes on, whatever those who listen do
            self._listeners.remove(listener)
            log.warn("a listener of the journal has failed: %s: %s", type(error).__name__, error)


def _run(reference: weakref.ref[Journal], wake: threading.Event) -> None:
    interval_s = _INTERVAL_S
    while True:
        wake.wait(interval_s)
        wake.clear()
        journal = reference()
        if journal is None or journal.closed:
            return
        journal.flush(yielding=True)
        interval_s = journal.interval_s
        del journal  # a journal that nobody holds any more must be able to go


def _write_whole(handle: int, content: bytes) -> None:
    while content:
        content = content[os.write(handle, content) :]


def _stop(wake: threading.Event) -> None:
    wake.set()


def _settled(event: Event) -> Event:
    """Turn tensors among the metrics into numbers; they wait for their device here, not in the training."""
    metrics = event.data.get("metrics")
    if not isinstance(metrics, Mapping) or all(type(value) is float for value in metrics.values()):
        return event
    numbers = {str(name): _as_float(value) for name, value in metrics.items()}
    return Event(event.kind, {**event.data, "metrics": numbers}, event.time_s, event.rank)


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return float("nan")


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
    mark = index.read_mark(folder)
    if mark is None or mark.num_bytes > (run_dir / FILE).stat().st_size:
        shutil.rmtree(folder, ignore_errors=True)
        mark = index.Mark(0, 0)
    else:
        index.cut(folder, mark)
    twin = index.Index(folder)
    return twin, twin.extend(run_dir / FILE, mark).last_id
