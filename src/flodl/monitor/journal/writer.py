"""Writing the journal of a run: the training thread leaves an event behind, another thread writes it down."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from flodl.core import log
from flodl.core.errors import MonitorError
from flodl.monitor import forks
from flodl.monitor.events import Event

from .lines import Entry
from .reader import Reader
from .store import Store

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
        # Who hears that the journal itself is in trouble; else it is a warning and an entry.
        self.on_trouble: Callable[[Event], object] | None = None
        self._queue: deque[Event] = deque()
        self._listeners: list[Listener] = []
        self._writing = threading.RLock()  # a listener may flush
        self._wake = threading.Event()
        self._closed = False
        self._store = Store(run_dir)
        self.last_id = self._store.last_id
        forks.own(self)
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
        if not self._closed:
            self._queue.append(event)

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with every batch of entries, on the writing thread, right after it is written.

        A batch that cannot be written is told all the same.
        """
        self._listeners.append(listener)
        self._wake.set()

    def flush(self, *, yielding: bool = False) -> None:
        """Write everything that was left so far, now; `yielding` makes way for other threads in between."""
        if self._closed:
            return
        with self._writing:
            while self._queue and not self._closed:
                self._write_batch(yielding=yielding)

    def reader(self) -> Reader:
        """Open everything up to now, on the disk or not."""
        self.flush()
        with self._writing:
            return self._store.reader()

    def close(self) -> None:
        """Write the rest and let the file go; more events are ignored."""
        if self._closed:
            return
        self.flush()
        with self._writing:
            self._store.retry()
            self._tell_trouble()
            self.flush()
            self._closed = True
            self._store.close()
        self._wake.set()
        if self._store.held:
            log.warn(
                "the journal in %s lacks its last %d events; save_html and the exports have them",
                self.run_dir,
                len(self._store.held),
            )

    def leave_to_parent(self) -> None:
        """Take nothing any more: this is a copy in a forked child, and the file is its parent's."""
        self._closed = True
        self._writing = threading.RLock()  # another thread of the parent may have held it
        self._queue.clear()
        self._store.abandon()

    @property
    def closed(self) -> bool:
        """Whether the journal was closed."""
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_batch(self, *, yielding: bool) -> None:
        stretch = _STRETCH if yielding and len(self._queue) < _BACKLOG else _STEP
        batch: list[Entry] = []
        while self._queue and len(batch) < _STEP:
            entry = Entry(self.last_id + 1, _settled(self._queue.popleft()))
            batch.append(entry)
            self.last_id = entry.id
            self._store.put(entry)
            if len(batch) % stretch == 0:
                time.sleep(_YIELD_S)
        self._store.commit()
        self._tell_trouble()
        for listener in tuple(self._listeners):
            self._tell(listener, batch)

    def _tell_trouble(self) -> None:
        for event in self._store.news():
            if self.on_trouble is not None:
                self.on_trouble(event)
            else:
                log.warn("%s", event.data["message"])
                self.write(event)

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
