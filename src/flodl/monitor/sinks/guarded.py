"""A sink behind a queue: whatever happens to it, training goes on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from flodl.core import log

from ..events import Event
from .sink import Sink

_CAPACITY = 10_000
_PATIENCE = 5


class Guarded:
    """Hand events to a sink from a thread of its own.

    Calling it never waits and never raises. When the sink cannot keep up, the oldest events go and
    `num_dropped` counts them; after five failures in a row the sink gets no more. Whatever goes wrong, one
    alert is emitted, once; without an `emit` it is a line on standard error. `close` waits `limit_s`
    seconds at most.

    >>> class Broken:
    ...     def write(self, event): raise OSError("disk full")
    ...     def close(self): pass
    >>> alerts = []
    >>> sink = Guarded(Broken(), alerts.append)
    >>> sink(Event("epoch", {"epoch": 0}))
    >>> sink.close()
    False
    >>> alerts[0].data["message"]
    'Broken misses events from here on: OSError: disk full. Training goes on.'
    """

    def __init__(
        self,
        sink: Sink,
        emit: Callable[[Event], object] | None = None,
        *,
        capacity: int = _CAPACITY,
        name: str = "",
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; give the number of events that may wait, 1 or more.")
        self.num_dropped = 0
        self._sink = sink
        self._emit = emit
        self._name = name or type(sink).__name__
        self._waiting: deque[Event] = deque()
        self._capacity = capacity
        self._changed = threading.Condition()
        self._closing = False
        self._has_alerted = False
        self._thread = threading.Thread(target=self._run, name=f"flodl-sink-{self._name}", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Put an event in the queue."""
        with self._changed:
            if self._closing:
                self.num_dropped += 1
                return
            is_full = len(self._waiting) >= self._capacity
            if is_full:
                self._waiting.popleft()
                self.num_dropped += 1
            self._waiting.append(event)
            self._changed.notify()
        if is_full:
            self._alert(f"it does not keep up with {self._capacity} events waiting; the oldest are dropped")

    def close(self, limit_s: float = 10.0) -> bool:
        """Write what waits and close the sink; say whether all of it was done in time."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(limit_s)
        if not self._thread.is_alive():
            return self.num_dropped == 0
        with self._changed:
            left = len(self._waiting)
            self.num_dropped += left
            self._waiting.clear()
        self._alert(f"it did not finish within {limit_s:g} s, {left} events are lost")
        return False

    def _run(self) -> None:
        failures = 0
        while failures < _PATIENCE:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    break
                event = self._waiting.popleft()
            try:
                self._sink.write(event)
                failures = 0
            except BaseException as error:  # one that calls sys.exit() ends nothing but itself
                failures += 1
                self._missed(error)
        with self._changed:
            self._closing = True
            self.num_dropped += len(self._waiting)
            self._waiting.clear()
        try:
            self._sink.close()
        except BaseException as error:
            self._missed(error)

    def _missed(self, error: BaseException) -> None:
        with self._changed:
            self.num_dropped += 1
        self._alert(f"{type(error).__name__}: {error}")

    def _alert(self, reason: str) -> None:
        with self._changed:
            if self._has_alerted:
                return
            self._has_alerted = True
        message = f"{self._name} misses events from here on: {reason.rstrip('.')}. Training goes on."
        if self._emit is None:
            log.warn("%s", message)
            return
        try:
            self._emit(Event("alert", {"message": message, "level": "warning"}))
        except Exception:  # the run is over and takes no events, or its own sink fails: still no harm
            log.warn("%s", message)
