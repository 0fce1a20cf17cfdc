"""Follow a training run: tell it what happens, and look at it from anywhere."""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from flodl.core import log
from flodl.core.errors import MonitorError

from . import archive, checks, exports, forks, sources
from .ending import how_it_ended
from .epochs import Epochs
from .events import Event, View
from .journal import Entry, Journal
from .not_finite import NotFinite
from .numbers import Given, as_numbers
from .pace import Pace
from .sinks.guarded import Guarded
from .sinks.sink import Sink
from .start import default_name, known_epochs, known_step, run_folder, start_facts
from .steps import Steps
from .views import Views
from .watching import WatchedStep, describe, draw_profile

_PROGRESS_INTERVAL_S = 0.2
# What serve() is called with to ask for the address again.
_PLAIN_PAGE = (3000, "127.0.0.1", None)
_EPOCH_ADVICE = "Count epochs from 0, as range does."
_RESTARTED = (
    "the steps start again with each epoch; they are counted on. "
    "Give log_step the step since the start of the run."
)
_STEP_ADVICE = (
    "Give a whole number, counted from the start of the run in log_step and of the epoch in progress."
)
# Those who look when the run ends, or just after, still get to see the end.
_LINGER_S = 5.0


class Monitor:
    """Watch any training loop: a line for each epoch, a journal, a live page and an archive.

    >>> with Monitor(2, console=False) as monitor:
    ...     for epoch in range(2):
    ...         monitor.log(epoch, {"loss": 0.5 / (epoch + 1)}, duration=1.0)
    >>> [(record["epoch"], record["metrics"]["loss"]) for record in monitor.history]
    [(1, 0.5), (2, 0.25)]

    Everything goes to a journal in `run_dir` (a temporary folder if none is given); console, page, exports
    and archive are views of it. A `run_dir` that has a journal already is continued: an epoch or step that
    comes again takes the place of all that was told from there on. `config` is a dict, nested or not;
    `origins` may say where its values come from, by dotted path. `views` are called with every event, `sinks`
    (TensorBoard and others) in a thread of their own. `log_step` takes at most `step_rate` values of a metric
    in a second; None takes them all. After `finish`, telling more is an error; only `emit` is ignored then.
    """

    def __init__(
        self,
        total_epochs: int = 0,
        run_dir: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        origins: Mapping[str, str] | None = None,
        views: Iterable[View] = (),
        sinks: Iterable[Sink] = (),
        console: bool = True,
        resources: bool = True,
        step_rate: float | None = 20.0,
        rank: int = 0,
    ) -> None:
        self.total_epochs = checks.whole(
            "total_epochs",
            total_epochs,
            "Give the number of epochs first, or 0 if it is not known: Monitor(10, 'runs/first').",
        )
        checks.run_options(run_dir, name, config, origins, console=console, resources=resources, rank=rank)
        step_rate = checks.rate(step_rate)
        shown: list[View] = checks.listed("views", views, callable, "callables that take an event")
        given = checks.listed("sinks", sinks, checks.is_sink, "sinks, with write and close")
        self._began_s = time.monotonic()
        self.rank = rank
        self.run_dir = run_folder(self, run_dir)
        self._journal = Journal.open(self.run_dir)
        self._epochs = Epochs(known_epochs(self._journal, rank=rank))
        if console and rank == 0:
            from .console import Console

            shown.append(Console(self.total_epochs, durations=self._epochs.durations))
            if self.history:
                log.msg("  continues a journal with %d epochs: %s", len(self.history), self.run_dir)
        guarded = [Guarded(sink, self.emit) for sink in given]
        self._views = Views(shown, self._alert, in_order=guarded)
        self._server: Any = None
        self._served: tuple[Any, ...] = ()
        self._archive: Path | None = None
        self._graph: Callable[[], Any] = lambda: None
        self._steps: list[WatchedStep] = []
        self._not_finite = NotFinite(self._alert)
        self._progress_pace = Pace(_PROGRESS_INTERVAL_S)
        last = known_step(self._journal, rank=rank)
        self._step_values = Steps(step_rate, last=last, on_restart=lambda: self._alert(_RESTARTED))
        self._finished = False
        self._is_copy = False
        forks.own(self)
        self._journal.on_trouble = self._tell_trouble
        self._journal.subscribe(self._views.tell_late)
        self._journal.subscribe(self._check_steps)
        self._sources = sources.started(self.emit, resources=resources, rank=rank)
        facts = start_facts(name or default_name(run_dir), self.total_epochs, config or {}, origins or {})
        self.emit(Event("run_start", facts, rank=rank))
        atexit.register(self._left_open)

    @property
    def history(self) -> list[dict[str, Any]]:
        """Every epoch so far: `epoch` (from 1), `total`, `duration`, `eta`, `time_s` and `metrics`."""
        return self._epochs.history

    @property
    def url(self) -> str | None:
        """The address of the live page, while it is served."""
        return self._server.url if self._server is not None else None

    def serve(self, port: int = 3000, host: str = "127.0.0.1", *, token: str | None = None) -> str:
        """Show the run on a live page until it ends and some seconds more, and give the page's address.

        The page can be reached from this machine alone, unless another `host` is given; then a token is part
        of the address. A port that is taken is passed over for the next free one.
        """
        from .server import RunSource, Server

        if self._is_copy:
            raise MonitorError("this process was forked from that of the run, which serves the page itself.")
        if self._finished:
            raise MonitorError(
                f"the run has finished, and its page with it. `fdl monitor {self.run_dir}` shows it again."
            )
        checks.token(token)
        if self._server is not None and (port, host, token) in (self._served, _PLAIN_PAGE):
            return str(self._server.url)
        if self._server is not None:
            raise MonitorError(f"the page is served already, at {self._server.url}. Serve a run once.")
        self._journal.flush()
        source = RunSource(self._journal, elapsed_s=lambda: time.monotonic() - self._began_s)
        source.total_epochs = self.total_epochs
        self._server = Server([source], last_id=self._journal.last_id, host=host, port=port, token=token)
        self._served = (port, host, token)
        self._journal.subscribe(self._publish)
        self._journal.interval_s = self._server.interval_s
        taken = f" (port {port} is taken)" if port not in (0, self._server.port) else ""
        log.msg("  live page: %s%s", self._server.url, taken)
        return str(self._server.url)

    def watch(self, model: Any) -> None:
        """Show a graph or another module with its size and picture, or the tiers of a `TrainStep`."""
        self._refuse_after_the_end("Watch")
        if hasattr(model, "report") and not hasattr(model, "parameters"):
            self._steps.append(WatchedStep(model))
            self._ask_steps()
            return
        if not hasattr(model, "parameters"):
            raise MonitorError(
                f"a {type(model).__name__} cannot be watched. Give a Graph, another nn.Module or a TrainStep."
            )
        self._graph = weakref.ref(model)
        for event in describe(model, self.run_dir):
            self.emit(event)

    def log(self, epoch: int, metrics: Given, duration: float | None = None) -> None:
        """Tell the end of an epoch, counted from 0: a dict of metrics, or a graph that recorded them.

        Without a `duration` in seconds, the time since the last epoch is taken.
        """
        self._refuse_after_the_end("Log")
        epoch = checks.whole("epoch", epoch, _EPOCH_ADVICE)
        if duration is not None:
            duration = checks.seconds("duration", duration)
        event = self._epochs.end(
            epoch, as_numbers(metrics), duration=duration, total_epochs=self.total_epochs, rank=self.rank
        )
        self.emit(event)
        self._not_finite.look(event)
        self._ask_steps()

    def log_step(self, step: int, metrics: Given, *, epoch: int | None = None) -> None:
        """Tell metrics within an epoch: call it at every step, `step_rate` decides how many are taken.

        It may be called several times in a step, with other metrics. Steps count from the start of the run;
        where they start again with each `epoch`, they are counted on, and an alert says so. Nothing waits
        for a device: tensors are copied where they lie and read in the background.
        """
        if self._finished:
            self._refuse_after_the_end("Log")
        if type(step) is not int or step < 0:
            step = checks.whole("step", step, _STEP_ADVICE)
        if epoch is not None and (type(epoch) is not int or epoch < 0):
            epoch = checks.whole("epoch", epoch, _EPOCH_ADVICE)
        taken = self._step_values.take(step, metrics, epoch)
        if taken is None:
            return
        self._epochs.enter_loop()
        data: dict[str, Any] = {"step": taken[0], "metrics": taken[1]}
        if epoch is not None:
            data["epoch"] = epoch
        self.emit(Event("metrics", data, rank=self.rank))

    def progress(self, epoch: int, step: int, num_steps: int | None = None) -> None:
        """Tell the place within an epoch: `step` of its `num_steps` are done; call it at every step."""
        if self._finished:
            self._refuse_after_the_end("Tell progress")
        epoch = checks.whole("epoch", epoch, _EPOCH_ADVICE)
        step = checks.whole("step", step, _STEP_ADVICE)
        if num_steps is not None:
            num_steps = checks.whole("num_steps", num_steps, "Give the steps of an epoch, or None.")
        if not self._progress_pace.is_due(at_once=step == num_steps):
            return
        self._epochs.enter_loop()
        self.emit(Event("progress", {"epoch": epoch, "step": step, "num_steps": num_steps}, rank=self.rank))

    def alert(self, message: str, *, level: str = "warning", path: str | None = None) -> None:
        """Tell something that people should see: `level` is info, warning or error."""
        self._refuse_after_the_end("Alert")
        self._alert(message, level=level, path=path)

    def emit(self, event: Event) -> None:
        """Tell any event; the journal gets it without waiting. In a forked child, nothing happens."""
        if self._is_copy:
            return
        checks.event(event)
        self._journal.write(event)
        self._views.tell(event)

    def finish(self, status: str = "finished", message: str | None = None) -> None:
        """Tell the end: "finished", "stopped" or "failed". Only the first call counts."""
        checks.one_of("status", status, checks.STATUSES)
        if self._finished:
            return
        self._finished = True
        atexit.unregister(self._left_open)
        for source in self._sources:
            source.stop()
        self._ask_steps()
        draw_profile(self._graph(), self.run_dir)
        self._journal.flush()
        # Epochs may be told with durations that a clock elsewhere has taken: the whole is never less.
        duration_s = max(time.monotonic() - self._began_s, self._epochs.total_s)
        data = {"status": status, "duration_s": duration_s}
        self.emit(Event("run_end", data if message is None else {**data, "message": message}, rank=self.rank))
        self._journal.flush()
        self._views.close()  # whatever they still have to say is written
        self._journal.close()
        if self._server is not None:
            self._server.settle()
            self._server.close(after_s=_LINGER_S)
        if self._archive is not None:
            try:
                log.msg("  saved: %s", archive.save_html(self._archive, [self._journal.reader()]))
            except OSError as error:  # a full disk is no reason to fail a run that has ended
                log.warn("%s is not up to date: %s", self._archive, error.strerror or error)

    def close(self) -> None:
        """Finish if that has not happened, and close the page at once."""
        self.finish()
        if self._server is not None:
            self._server.close()
            self._server = None

    def save_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the page with all of its data as one file, now and again when the run ends."""
        self._archive = archive.save_html(checks.file(path), [self._journal.reader()])
        return self._archive

    def export_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write a table with a row for each epoch and a column for every metric that any epoch has."""
        return exports.export_csv(checks.file(path), self._journal.reader(), rank=self.rank)

    def write_log(self, path: str | os.PathLike[str]) -> Path:
        """Write a line for each epoch as text."""
        return exports.write_log(checks.file(path), self._journal.reader(), rank=self.rank)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.finish(*how_it_ended(error))

    def leave_to_parent(self) -> None:
        """Tell nothing any more: this is a copy in a forked child, and the run is its parent's."""
        self._is_copy = self._finished = True

    def _refuse_after_the_end(self, what: str) -> None:
        if self._finished and not self._is_copy:
            raise MonitorError(f"the run has finished and takes no more. {what} before finish().")

    def _alert(self, message: str, *, level: str = "warning", path: str | None = None) -> None:
        checks.one_of("level", level, checks.LEVELS)
        where = {} if path is None else {"path": path}
        self.emit(Event("alert", {"message": message, "level": level, **where}, rank=self.rank))

    def _tell_trouble(self, event: Event) -> None:
        self.emit(replace(event, rank=self.rank))

    def _publish(self, batch: list[Entry]) -> None:
        self._server.publish(batch)
        self._journal.interval_s = self._server.interval_s

    def _ask_steps(self) -> None:
        for step in self._steps:
            for event in step.news():
                self.emit(event)

    def _check_steps(self, batch: list[Entry]) -> None:
        for entry in batch:
            if entry.event.kind == "metrics" and isinstance(entry.event.data["metrics"], Mapping):
                self._not_finite.look(entry.event)

    def _left_open(self) -> None:
        """Tell the end of a program that did not: what brought it down, or that nobody called `finish`."""
        error = getattr(sys, "last_value", None)
        if error is None:
            self.finish("stopped", "the program ended without finish()")
        else:
            self.finish(*how_it_ended(error))
