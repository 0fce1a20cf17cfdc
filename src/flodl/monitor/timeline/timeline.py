"""Record where the time of a run goes."""

from __future__ import annotations

import gc
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from flodl.core.errors import MonitorError
from flodl.core.integers import as_integer, is_integer
from flodl.core.output_files import write_output

from ..events import Event
from ..resources import Host, find_gpus, read_resources
from . import html, tables
from .gaps import Gap, idle_gaps
from .phases import Phases
from .record import Mark, Record, Sample, merge_pairs
from .verdict import Verdict, verdict

Batch = TypeVar("Batch")

_MAX_SAMPLES = 36_000
_MAX_MARKS = 10_000
_MIN_GC_PAUSE_S = 0.001
# Shorter waits happen at every step; the samples contain their sum.
_MIN_WAIT_S = 0.25
_LABELS = {"tier": "tier", "note": "message", "save": "path", "alert": "message", "sync": "ranks"}


class Timeline:
    """Record CPU, GPUs and the phases of the training loop, ten times per second, from its own thread.

    Mark the phases of the loop with `step()`, `data()`, `sync()` or any `phase(name)`, or wrap the loader in
    `batches`, which separates waiting for data from working on it. A timeline is also a view of events.

    >>> with Timeline(interval_s=0.01) as timeline:
    ...     for batch in timeline.batches(range(40)):
    ...         time.sleep(0.01)
    >>> timeline.verdict().bound
    'compute-bound'

    The record is bounded: when it is full, neighboring samples are merged and the interval is doubled.
    """

    def __init__(
        self,
        interval_s: float = 0.1,
        *,
        max_samples: int = _MAX_SAMPLES,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not isinstance(interval_s, int | float) or not 0 < interval_s < math.inf:
            raise ValueError(
                f"interval_s is {interval_s!r}. Pass the number of seconds between samples, such as 0.1."
            )
        max_samples = as_integer(max_samples)
        if not is_integer(max_samples, at_least=2):
            raise ValueError(
                f"max_samples is {max_samples!r}. Pass the maximum number of samples, 2 or more."
            )
        self._interval_s = interval_s
        self._max_samples = max_samples
        self._clock = clock
        self._origin_s: float | None = None
        self._started_s = 0.0
        self._phases = Phases(clock)
        # Created once, because every step uses them.
        self._step, self._data, self._sync = (_Phase(self, name) for name in ("step", "data", "sync"))
        self._num_steps = 0
        self._samples: list[Sample] = []
        self._marks: deque[Mark] = deque()
        self._num_dropped = 0
        self._gc_started_s: float | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Start recording; a second call has no effect."""
        if self._thread is None:
            if self._origin_s is None:
                self._origin_s, self._started_s = self._clock(), time.time()
            self._stopping.clear()
            before = (self._phases.totals(), self._num_steps)
            self._thread = threading.Thread(target=self._run, args=before, name="flodl-timeline", daemon=True)
            self._thread.start()
            gc.callbacks.append(self._on_gc)
        return self

    def stop(self) -> None:
        """Stop recording and wait for the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            gc.callbacks.remove(self._on_gc)
            self._stopping.set()
            thread.join()

    def close(self) -> None:
        """Stop recording; a monitor calls this on its views."""
        self.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def phase(self, name: str) -> _Phase:
        """Return a context manager for the phase `name`; a long phase also becomes a mark."""
        return _Phase(self, name)

    def step(self) -> _Phase:
        """Return a context manager for one training step."""
        return self._step

    def data(self) -> _Phase:
        """Return a context manager for waiting for data."""
        return self._data

    def sync(self) -> _Phase:
        """Return a context manager for waiting for other ranks or for the device."""
        return self._sync

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Iterate over a loader: getting a batch counts as waiting for data, the loop body as a step."""
        source = iter(loader)
        while True:
            with self.data():
                try:
                    batch = next(source)
                except StopIteration:
                    return
            with self.step():
                yield batch

    def mark(self, kind: str, *, duration_s: float = 0.0, label: str = "") -> None:
        """Add a mark for something that just happened, or just ended after `duration_s` seconds."""
        self._add(Mark(self._elapsed_s() - duration_s, kind, duration_s, label))

    def __call__(self, event: Event) -> None:
        """Add an event of a run as a mark; frequent kinds are ignored."""
        if event.kind == "epoch":
            # Without its duration, which would cover everything else on the page.
            self.mark("epoch", label=str(int(event.data["epoch"]) + 1))
        elif event.kind in _LABELS:
            text = str(event.data.get(_LABELS[event.kind], ""))
            self.mark(event.kind, duration_s=float(event.data.get("duration_s") or 0.0), label=text)

    @property
    def record(self) -> Record:
        """Everything recorded so far."""
        return Record(tuple(self._samples), tuple(self._marks.copy()), self._started_s, self._num_dropped)

    def verdict(self) -> Verdict:
        """Return what limits the run, in one line."""
        return verdict(self.record)

    def idle_gaps(self, device: int | str = 0, *, below_pct: float = 5.0, min_s: float = 0.2) -> list[Gap]:
        """Return the periods in which a device was idle, with their likely causes."""
        return idle_gaps(self.record, device, below_pct=below_pct, min_s=min_s)

    def summary(self) -> dict[str, Any]:
        """Return the totals: time, steps, shares of the phases, marks by kind, idle time of each GPU."""
        return tables.summary(self.record)

    def save_json(self, path: str | os.PathLike[str]) -> Path:
        """Write the complete record as JSON; `Record.from_dict` restores it."""
        return write_output(path, tables.to_json(self.record), example="timeline.json", error=MonitorError)

    def save_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write the samples as a CSV table."""
        return write_output(path, tables.to_csv(self.record), example="timeline.csv", error=MonitorError)

    def save_html(self, path: str | os.PathLike[str], *, title: str = "Timeline") -> Path:
        """Write one HTML page that shows the record without network access."""
        return write_output(
            path, html.page(self.record, title=title), example="timeline.html", error=MonitorError
        )

    def _leave(self, name: str) -> None:
        duration_s = self._phases.leave(name)
        if name == "step":
            self._num_steps += 1
        elif duration_s >= (_MIN_WAIT_S if name in ("data", "sync") else self._interval_s):
            self.mark(name, duration_s=duration_s)

    def _elapsed_s(self) -> float:
        return self._clock() - self._origin_s if self._origin_s is not None else 0.0

    def _add(self, mark: Mark) -> None:
        # append and popleft are atomic, so the garbage collector may call this on any thread.
        self._marks.append(mark)
        if len(self._marks) > _MAX_MARKS:
            self._marks.popleft()
            self._num_dropped += 1

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        # Runs inside the garbage collector at any point of the program: it must not take a lock.
        if phase == "start":
            self._gc_started_s = self._clock()
        elif self._gc_started_s is not None:
            duration_s, self._gc_started_s = self._clock() - self._gc_started_s, None
            if duration_s >= _MIN_GC_PAUSE_S:
                self.mark("gc", duration_s=duration_s, label=f"generation {info['generation']}")

    def _run(self, before: dict[str, float], steps_before: int) -> None:
        host, gpus = Host(), find_gpus()
        host.read()
        interval_s, is_last = self._interval_s, False
        while not is_last:
            is_last = self._stopping.wait(interval_s)
            totals, num_steps = self._phases.totals(), self._num_steps
            readings = read_resources(host, gpus)
            # Only the time since the previous sample; phases without time are omitted.
            spent = {name: total - before.get(name, 0.0) for name, total in totals.items()}
            self._samples.append(
                Sample(
                    time_s=self._elapsed_s(),
                    phases={name: seconds for name, seconds in spent.items() if seconds > 0},
                    num_steps=num_steps - steps_before,
                    gpus=tuple(readings.pop("gpus", ())),
                    cpu_pct=readings.get("cpu_pct"),
                    process_cpu_pct=readings.get("process_cpu_pct"),
                    ram_used_bytes=readings.get("ram_used_bytes"),
                    ram_total_bytes=readings.get("ram_total_bytes"),
                )
            )
            before, steps_before = totals, num_steps
            if len(self._samples) >= self._max_samples:
                self._samples, interval_s = merge_pairs(self._samples), interval_s * 2


class _Phase:
    """A context manager that costs two clock readings."""

    __slots__ = ("_name", "_timeline")

    def __init__(self, timeline: Timeline, name: str) -> None:
        self._timeline = timeline
        self._name = name

    def __enter__(self) -> None:
        self._timeline._phases.enter(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timeline._leave(self._name)
