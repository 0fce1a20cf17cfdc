"""Write the journal of a run: the training thread appends to a queue, and another thread writes to disk."""

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
from flodl.core.files import expand_user

from ..events import Event
from ..fork_safety import register_after_fork
from .codec import Entry
from .reader import Reader
from .store import Store

_INTERVAL_S = 0.25
_MAX_BATCH = 1 << 16
# The writer releases the GIL after every few entries: a training step that needs it waits for some tens of
# microseconds instead of the whole batch. A long queue is processed faster.
_YIELD_EVERY = 4
_BACKLOG = 4096
_YIELD_S = 5e-5

Listener = Callable[[list[Entry]], object]


class Journal:
    """Append the events of a run to `journal.jsonl` in its folder, without blocking training.

    >>> import tempfile
    >>> from flodl.monitor.journal import read
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Journal.open(folder) as journal:
    ...         journal.write(Event("alert", {"message": "hot"}, time_s=1.0))
    ...     [(entry.id, entry.event.data["message"]) for entry in read(folder)]
    [(1, 'hot')]

    `write` only appends to a queue. Another thread writes to disk a few times per second, so a killed process
    loses less than its last second. An existing journal is continued, including its numbering. Only one
    process can write to a journal at a time.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.interval_s = _INTERVAL_S  # between two batches; keep it below a second
        # Receives alerts about the journal itself; by default, they are warnings and entries.
        self.on_alert: Callable[[Event], object] | None = None
        self._queue: deque[Event] = deque()
        self._listeners: list[Listener] = []
        self._lock = threading.RLock()  # reentrant: a listener may flush
        self._wake = threading.Event()
        self._closed = False
        self._store = Store(run_dir)
        self.last_id = self._store.last_id
        register_after_fork(self)
        self._stop = weakref.finalize(self, _stop, self._wake)
        self._thread = threading.Thread(
            target=_run, args=(weakref.ref(self), self._wake), name="flodl-journal", daemon=True
        )
        self._thread.start()

    @classmethod
    def open(cls, run_dir: str | os.PathLike[str]) -> Self:
        """Create the journal of a run, or continue an existing one."""
        folder = expand_user(run_dir)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return cls(folder)
        except OSError as error:
            raise MonitorError(
                f"cannot write the journal in {os.fspath(run_dir)!r}: {error.strerror or error}. "
                "Pass a folder that can be created and written to."
            ) from None

    def write(self, event: Event) -> None:
        """Queue an event for writing."""
        if not self._closed:
            self._queue.append(event)

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with every batch of entries on the writer thread, right after writing it.

        A batch that cannot be written is passed to listeners as well.
        """
        self._listeners.append(listener)
        self._wake.set()

    def flush(self, *, yielding: bool = False) -> None:
        """Write everything in the queue now; `yielding` lets other threads run in between."""
        if self._closed:
            return
        with self._lock:
            while self._queue and not self._closed:
                self._write_batch(yielding=yielding)

    def sync(self) -> None:
        """Write everything in the queue, and return when it is on disk."""
        self.flush()
        with self._lock:
            if not self._closed:
                self._store.sync()

    def reader(self) -> Reader:
        """Return a reader for everything so far, including entries that could not be written to disk."""
        self.flush()
        with self._lock:
            return self._store.reader()

    def close(self) -> None:
        """Write the queue and close the file; later events are ignored."""
        if self._closed:
            return
        self.flush()
        with self._lock:
            self._store.retry()
            self._forward_alerts()
            self.flush()
            self._closed = True
            self._store.close()
        self._wake.set()
        if self._store.pending:
            log.warn(
                "the journal in %s is missing its last %d events; save_html and the exports include them",
                self.run_dir,
                len(self._store.pending),
            )

    def after_fork_in_child(self) -> None:
        """Stop accepting events: this is a copy in a forked child, and the file belongs to its parent."""
        self._closed = True
        self._lock = threading.RLock()  # another thread of the parent may have held it
        self._queue.clear()
        self._store.abandon()

    @property
    def closed(self) -> bool:
        """Whether the journal is closed."""
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_batch(self, *, yielding: bool) -> None:
        yield_every = _YIELD_EVERY if yielding and len(self._queue) < _BACKLOG else _MAX_BATCH
        batch: list[Entry] = []
        while self._queue and len(batch) < _MAX_BATCH:
            self.last_id += 1
            batch.append(self._store.put(Entry(self.last_id, _with_numbers(self._queue.popleft()))))
            if len(batch) % yield_every == 0:
                time.sleep(_YIELD_S)
        self._store.commit()
        self._forward_alerts()
        for listener in tuple(self._listeners):
            self._notify(listener, batch)

    def _forward_alerts(self) -> None:
        for event in self._store.take_alerts():
            if self.on_alert is not None:
                self.on_alert(event)
            else:
                log.warn("%s", event.data["message"])
                self.write(event)

    def _notify(self, listener: Listener, batch: list[Entry]) -> None:
        try:
            listener(batch)
        except Exception as error:  # a failing listener must not stop the journal
            self._listeners.remove(listener)
            log.warn("a journal listener failed: %s: %s", type(error).__name__, error)


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
        del journal  # so that an unreferenced journal can be garbage-collected


def _stop(wake: threading.Event) -> None:
    wake.set()


def _with_numbers(event: Event) -> Event:
    """Convert tensor metrics to floats; waiting for the device happens here, not in the training loop."""
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
