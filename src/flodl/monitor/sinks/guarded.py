"""Run a sink behind a queue, so that its failures never affect training."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from flodl.core import MonitorError, log
from flodl.core.integers import is_integer
from flodl.core.usage.calls import MonitorCallError, explain_creation

from .. import validation
from ..events import Event
from .sink import Sink

_CAPACITY = 10_000
_MAX_FAILURES = 5


@explain_creation(MonitorCallError, example="Write Guarded(sink).")
class Guarded:
    """Pass events to a sink from a separate thread.

    Calling it never waits and never raises. If the sink cannot keep up, the oldest events are dropped and
    counted in `num_dropped`; after five failures in a row, the sink receives no more events. The first
    problem emits one alert, or a warning on standard error without `emit`. `close` waits at most `limit_s`
    seconds.

    >>> class Broken:
    ...     def write(self, event): raise OSError("disk full")
    ...     def close(self): pass
    >>> alerts = []
    >>> sink = Guarded(Broken(), alerts.append)
    >>> sink(Event("epoch", {"epoch": 0}))
    >>> sink.close()
    False
    >>> alerts[0].data["message"]
    'Broken is missing events from now on: OSError: disk full. Training continues.'
    """

    def __init__(
        self,
        sink: Sink,
        emit: Callable[[Event], object] | None = None,
        *,
        capacity: int = _CAPACITY,
        name: str = "",
    ) -> None:
        if not validation.is_sink(sink):
            raise MonitorError(f"Guarded got {sink!r:.60}. Pass a sink, with the methods write and close.")
        if not is_integer(capacity, at_least=1):
            raise MonitorError(
                f"capacity is {capacity!r}. Pass the maximum number of queued events, 1 or more."
            )
        self.num_dropped = 0
        self._sink = sink
        self._emit = emit
        self._name = name or type(sink).__name__
        self._queue: deque[Event] = deque()
        self._capacity = capacity
        self._changed = threading.Condition()
        self._closing = False
        # Whether the sink is writing an event, and whether a `flush` gave up waiting for it.
        self._is_writing = self._is_late = False
        self._has_alerted = False
        self._thread = threading.Thread(target=self._run, name=f"flodl-sink-{self._name}", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Queue an event."""
        with self._changed:
            if self._closing:
                self.num_dropped += 1
                return
            is_full = len(self._queue) >= self._capacity
            if is_full:
                self._queue.popleft()
                self.num_dropped += 1
            self._queue.append(event)
            self._changed.notify_all()
        if is_full:
            self._alert(f"it cannot keep up, {self._capacity} events are queued and the oldest are dropped")

    def flush(self, limit_s: float = 0.5) -> bool:
        """Wait until the queue is written, and return whether it is; a sink that hangs is waited for once."""
        with self._changed:
            if self._is_late and not self._is_idle():
                return False
            self._is_late = not self._changed.wait_for(self._is_idle, limit_s)
            return not self._is_late

    def _is_idle(self) -> bool:
        return not self._queue and not self._is_writing

    def close(self, limit_s: float = 10.0) -> bool:
        """Write the queue and close the sink; return whether every event was written in time."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(limit_s)
        if not self._thread.is_alive():
            return self.num_dropped == 0
        with self._changed:
            num_left = len(self._queue)
            self.num_dropped += num_left
            self._queue.clear()
        self._alert(f"it did not finish within {limit_s:g} s, {num_left} events are lost")
        return False

    def _run(self) -> None:
        failures = 0
        while failures < _MAX_FAILURES:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    break
                event, self._is_writing = self._queue.popleft(), True
            try:
                self._sink.write(event)
                failures = 0
            except BaseException as error:  # includes a sink that calls sys.exit()
                failures += 1
                self._on_failure(error)
            finally:
                with self._changed:
                    self._is_writing = False
                    self._changed.notify_all()
        with self._changed:
            self._closing = True
            self.num_dropped += len(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        try:
            self._sink.close()
        except BaseException as error:
            self._on_failure(error)

    def _on_failure(self, error: BaseException) -> None:
        with self._changed:
            self.num_dropped += 1
        self._alert(f"{type(error).__name__}: {error}")

    def _alert(self, reason: str) -> None:
        with self._changed:
            if self._has_alerted:
                return
            self._has_alerted = True
        message = f"{self._name} is missing events from now on: {reason.rstrip('.')}. Training continues."
        if self._emit is None:
            log.warn("%s", message)
            return
        try:
            self._emit(Event("alert", {"message": message, "level": "warning"}))
        except Exception:  # the run has ended, or its own sink failed
            log.warn("%s", message)
