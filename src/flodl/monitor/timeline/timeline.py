"""Recording where the time goes, while it goes."""

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

from flodl.core.files import write_atomic

from ..events import Event
from ..resources import Host, find_gpus, read_resources
from . import html, tables
from .gaps import Gap, idle_gaps
from .phases import Phases
from .record import Mark, Record, Sample, halved
from .verdict import Verdict, verdict

Batch = TypeVar("Batch")

_MOST_SAMPLES = 36_000
_MOST_MARKS = 10_000
_SHORTEST_PAUSE_S = 0.001
# Shorter waits come with every step; their sum is in the samples.
_LONG_WAIT_S = 0.25
_LABELS = {"tier": "tier", "save": "path", "alert": "message", "sync": "ranks"}


class Timeline:
    """Record processor, GPUs and what the training loop does, ten times a second, from a thread of its own.

    Say what the loop does with `step()`, `data()`, `sync()` or any `phase(name)`, or wrap the loader in
    `batches`, which tells waiting for data from working on it. It is a view of events, too.

    >>> with Timeline(interval_s=0.01) as timeline:
    ...     for batch in timeline.batches(range(40)):
    ...         time.sleep(0.01)
    >>> timeline.verdict().bound
    'compute-bound'

    The record stays bounded: when it is full, neighbouring samples are joined and the pace is halved.
    """

    def __init__(
        self,
        interval_s: float = 0.1,
        *,
        most_samples: int = _MOST_SAMPLES,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not isinstance(interval_s, int | float) or not 0 < interval_s < math.inf:
            raise ValueError(
                f"interval_s is {interval_s!r}; give the seconds between two samples, such as 0.1."
            )
        if not isinstance(most_samples, int) or most_samples < 2:
            raise ValueError(f"most_samples is {most_samples!r}; give the samples to keep, 2 or more.")
        self._interval_s = interval_s
        self._most_samples = most_samples
        self._clock = clock
        self._origin_s: float | None = None
        self._started_s = 0.0
        self._phases = Phases(clock)
        # Made once: they stand in every step.
        self._step, self._data, self._sync = (_Phase(self, name) for name in ("step", "data", "sync"))
        self._num_steps = 0
        self._samples: list[Sample] = []
        self._marks: deque[Mark] = deque()
        self._num_dropped = 0
        self._collection_s: float | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Begin to record; a second call changes nothing."""
        if self._thread is None:
            if self._origin_s is None:
                self._origin_s, self._started_s = self._clock(), time.time()
            self._stopping.clear()
            before = (self._phases.totals(), self._num_steps)
            self._thread = threading.Thread(target=self._run, args=before, name="flodl-timeline", daemon=True)
            self._thread.start()
            gc.callbacks.append(self._on_collection)
        return self

    def stop(self) -> None:
        """End the recording and wait for its thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            gc.callbacks.remove(self._on_collection)
            self._stopping.set()
            thread.join()

    def close(self) -> None:
        """End the recording: what the owner of a view calls."""
        self.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def phase(self, name: str) -> _Phase:
        """Give a context in which the loop is said to do `name`; one that lasts becomes a mark."""
        return _Phase(self, name)

    def step(self) -> _Phase:
        """Give a context for one training step."""
        return self._step

    def data(self) -> _Phase:
        """Give a context for waiting for data."""
        return self._data

    def sync(self) -> _Phase:
        """Give a context for waiting for other ranks or for the device."""
        return self._sync

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Go through a loader: getting a batch counts as waiting for data, the loop's body as a step."""
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
        """Note that something just happened, or just ended after `duration_s` seconds."""
        self._add(Mark(self._elapsed_s() - duration_s, kind, duration_s, label))

    def __call__(self, event: Event) -> None:
        """Take an event of a run as a mark; the frequent kinds are left out."""
        if event.kind == "epoch":
            # Its duration would cover everything else on the page.
            self.mark("epoch", label=str(int(event.data["epoch"]) + 1))
        elif event.kind in _LABELS:
            text = str(event.data.get(_LABELS[event.kind], ""))
            self.mark(event.kind, duration_s=float(event.data.get("duration_s") or 0.0), label=text)

    @property
    def record(self) -> Record:
        """Everything recorded so far."""
        return Record(tuple(self._samples), tuple(self._marks.copy()), self._started_s, self._num_dropped)

    def verdict(self) -> Verdict:
        """Say in one line what limits the run."""
        return verdict(self.record)

    def idle_gaps(self, device: int | str = 0, *, below_pct: float = 5.0, min_s: float = 0.2) -> list[Gap]:
        """Give the times when a device had nothing to do, with their likely causes."""
        return idle_gaps(self.record, device, below_pct=below_pct, min_s=min_s)

    def summary(self) -> dict[str, Any]:
        """Give the totals: time, steps, shares of the phases, marks by kind, idle time of each GPU."""
        return tables.summary(self.record)

    def save_json(self, path: str | os.PathLike[str]) -> Path:
        """Write the whole record; `Record.from_dict` reads it back."""
        return write_atomic(path, tables.to_json(self.record))

    def save_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write the samples as a table."""
        return write_atomic(path, tables.to_csv(self.record))

    def save_html(self, path: str | os.PathLike[str], *, title: str = "Timeline") -> Path:
        """Write one page that shows the record in any browser and needs no network."""
        return write_atomic(path, html.page(self.record, title=title).encode("utf-8", "backslashreplace"))

    def _leave(self, name: str) -> None:
        duration_s = self._phases.leave(name)
        if name == "step":
            self._num_steps += 1
        elif duration_s >= (_LONG_WAIT_S if name in ("data", "sync") else self._interval_s):
            self.mark(name, duration_s=duration_s)

    def _elapsed_s(self) -> float:
        return self._clock() - self._origin_s if self._origin_s is not None else 0.0

    def _add(self, mark: Mark) -> None:
        # One append and, at times, one popleft: atomic each, so the collector may call from any thread.
        self._marks.append(mark)
        if len(self._marks) > _MOST_MARKS:
            self._marks.popleft()
            self._num_dropped += 1

    def _on_collection(self, when: str, info: dict[str, int]) -> None:
        # Runs inside the collector, wherever that strikes: it takes no lock.
        if when == "start":
            self._collection_s = self._clock()
        elif self._collection_s is not None:
            duration_s, self._collection_s = self._clock() - self._collection_s, None
            if duration_s >= _SHORTEST_PAUSE_S:
                self.mark("gc", duration_s=duration_s, label=f"generation {info['generation']}")

    def _run(self, before: dict[str, float], steps_before: int) -> None:
        host, gpus = Host(), find_gpus()
        host.read()
        pace_s, is_last = self._interval_s, False
        while not is_last:
            is_last = self._stopping.wait(pace_s)
            totals, num_steps = self._phases.totals(), self._num_steps
            readings = read_resources(host, gpus)
            # Only what the loop did since the sample before; phases without time are left out.
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
            if len(self._samples) >= self._most_samples:
                self._samples, pace_s = halved(self._samples), pace_s * 2


class _Phase:
    """A context that costs two readings of the clock."""

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
