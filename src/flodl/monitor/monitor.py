"""Monitor a training run: record what happens, and show it on the console, on a live page and in files."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from flodl.core import log
from flodl.core.errors import MonitorError
from flodl.core.formats import counted, shell_word
from flodl.core.usage.calls import MonitorCallError, explain_calls, explain_creation, explain_methods

from . import exports, recorder, validation
from .attributes import CheckedAttributes
from .events import Event, View
from .fork_safety import register_after_fork
from .journal import Entry, Journal
from .live_page import LivePage
from .metrics import Metrics
from .run_settings.found import found_settings, with_published
from .sinks import Guarded, Sink

_PROGRESS_INTERVAL_S = 0.2
_EPOCH_ADVICE = "Count epochs from 0, as range does."
_STEP_ADVICE = "Pass an integer, counted from the start of the run in log_step and of the epoch in progress."
_STEPS_RESTART = (
    "the steps restart at 0 in each epoch, so they are renumbered. "
    "Pass log_step the step since the start of the run."
)
_STEPS_GO_BACK = (
    "step {} was logged after step {}: in charts and tables, the values from there on replace the earlier "
    "ones. Pass increasing steps to log_step."
)


@explain_creation(
    MonitorCallError, elsewhere=validation.ELSEWHERE, example="Write Monitor(10, 'runs/first')."
)
@explain_methods(MonitorCallError, elsewhere=validation.ELSEWHERE_IN_CALLS, examples=validation.EXAMPLES)
class Monitor(CheckedAttributes):
    """Monitor any training loop: a line for each epoch, a journal, a live page and an archive.

    >>> with Monitor(2, console=False) as monitor:
    ...     for epoch in range(2):
    ...         monitor.log(epoch, {"loss": 0.5 / (epoch + 1)}, duration=1.0)
    >>> [(record["epoch"], record["metrics"]["loss"]) for record in monitor.history]
    [(1, 0.5), (2, 0.25)]

    Everything goes to a journal in `run_dir` (by default a temporary folder); console, page, exports and
    archive are views of it. If `run_dir` already has a journal, it is continued: an epoch or step that is
    logged again replaces everything recorded from there on. `config` is a dict, nested or flat; `origins` may
    map its dotted paths to where the values come from. Without `config`, the settings in the variables of the
    program are recorded: each `argparse.Namespace`, and dataclasses in variables such as `args` or `config`.
    `views` are called with every event, `sinks` (TensorBoard and others) in their own thread. `log_step`
    records at most `step_rate` values of a metric per second; None records all of them. After `finish`,
    further calls raise; only `emit` is ignored.
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
        self.total_epochs = validation.non_negative_int(
            "total_epochs",
            total_epochs,
            "Pass the number of epochs first, or 0 if it is not known: Monitor(10, 'runs/first').",
        )
        validation.run_options(
            run_dir, name, config, origins, console=console, resources=resources, rank=rank
        )
        step_rate = validation.step_rate(step_rate)
        all_views: list[View] = validation.list_of("views", views, callable, "callables that take an event")
        valid_sinks = validation.list_of("sinks", sinks, validation.is_sink, "sinks, with write and close")
        self._started_s = started_s = time.monotonic()
        self.rank = rank
        self.run_dir = recorder.run_folder(self, run_dir)
        self._journal = Journal.open(self.run_dir)
        self._epochs = recorder.EpochTracker(recorder.previous_epochs(self._journal, rank=rank), self._alert)
        self._graph_metrics = recorder.GraphMetrics(self._alert)
        if console and rank == 0:
            from .console import Console

            all_views.append(Console(self.total_epochs, durations=self._epochs.durations))
            if self.history:
                num_epochs = counted(len(self.history), "epoch")
                log.msg("  continuing a journal with %s: %s", num_epochs, self.run_dir)
        guarded = [Guarded(sink, self.emit) for sink in valid_sinks]
        self._views = recorder.ViewDispatcher(all_views, self._alert, ordered=guarded)
        self._page = LivePage(
            self._journal, total_epochs=self.total_epochs, elapsed_s=lambda: time.monotonic() - started_s
        )
        self._archive: Path | None = None
        self._watched = recorder.Watched(self.run_dir)
        self._settings = recorder.WatchedSettings(recorder.earlier_settings(self._journal, rank=rank))
        self._non_finite = recorder.NonFiniteAlert(self._alert)
        self._progress_limit = recorder.RateLimit(_PROGRESS_INTERVAL_S)
        last = recorder.previous_step(self._journal, rank=rank)
        self._steps = recorder.StepSampler(
            step_rate,
            last=last,
            on_restart=lambda: self._alert(_STEPS_RESTART),
            on_rewind=lambda *steps: self._alert(_STEPS_GO_BACK.format(*steps)),
        )
        self._finished = False
        # Whether events are ignored: in a forked child, and while the monitor is muted.
        self._is_forked = False
        register_after_fork(self)
        self._journal.on_alert = self._on_journal_alert
        self._journal.subscribe(self._views.dispatch_batch)
        self._journal.subscribe(self._check_step_metrics)
        self._sources = recorder.start_sources(self.emit, resources=resources, rank=rank)
        found = found_settings(sys._getframe(1)) if config is None else {}
        settings, known_origins = with_published({"config": found} if found else config or {})
        data = recorder.run_start_data(
            name or recorder.default_name(run_dir),
            self.total_epochs,
            settings,
            {**known_origins, **(origins or {})},
            run_dir=run_dir,
        )
        self.emit(Event("run_start", data, rank=rank))
        atexit.register(self._finish_at_exit)

    @property
    def history(self) -> list[dict[str, Any]]:
        """Every epoch so far: `epoch` (from 1), `total`, `duration`, `eta`, `time_s` and `metrics`."""
        return self._epochs.history

    @property
    def url(self) -> str | None:
        """The address of the live page while it is served."""
        return self._page.url

    def serve(self, port: int = 3000, host: str = "127.0.0.1", *, token: str | None = None) -> str:
        """Serve a live page until a few seconds after the run ends, and return its address.

        By default, only this machine can reach the page. With another `host`, the address contains a token.
        If the port is in use, the next free one is taken.
        """
        if self._is_forked:
            raise MonitorError(
                "cannot serve the page from a forked child. Call serve() in the run's process."
            )
        if self._finished:
            raise MonitorError(
                f"the run has finished, and its live page is closed. "
                f"`fdl monitor {shell_word(self.run_dir)}` shows the run again."
            )
        if not isinstance(host, str):
            raise MonitorError(f"host is {host!r}. Pass a string such as '127.0.0.1'.")
        return self._page.serve(port, host, token)

    def describe(self, settings: Mapping[str, Any], *, origins: Mapping[str, str] | None = None) -> None:
        """Add settings that became known after the start; a path that was recorded before is replaced.

        A `Trainer` calls this, so that a monitor of your own has the settings of the run, too.
        """
        self._raise_if_finished("Describe the run")
        validation.settings(settings, origins)
        self._emit_settings(settings, origins or {})

    def watch(self, model: Any, *, describe: bool = True) -> None:
        """Show a graph or another module with its size and picture, or the tiers of a `TrainStep`.

        Their settings are recorded as well, with those of the optimizer and the schedule of a `TrainStep`. In
        a loop without a `TrainStep`, also pass the optimizer, and the LR scheduler if there is one.

        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
        >>> with Monitor(1, console=False) as monitor:
        ...     monitor.watch(optimizer)

        `describe=False` records no settings: a `Trainer` records them itself.
        """
        self._raise_if_finished("Watch the model")
        self._emit_all(self._watched.add(model))
        if not describe:
            self._settings.leave_out(model)
        elif not self._is_forked and (settings := self._settings.of(model)):
            self._emit_settings(*with_published(settings, only_these=True))

    @explain_calls(MonitorCallError, example="Write monitor.log(epoch, {'loss': 0.5}).")
    def log(
        self,
        epoch: int,
        metrics: Metrics,
        duration: float | None = None,
        *,
        tables: Mapping[str, Any] | None = None,
        earlier_s: float = 0.0,
    ) -> None:
        """Record the end of an epoch, counted from 0: a dict of metrics, or a graph that recorded them.

        Without a `duration` in seconds, the time since the last epoch is used. `earlier_s` is the part of the
        `duration` that earlier starts of the run spent in this epoch. Logging the last epoch again
        adds metrics to it. For a graph, only metrics that it closed since the last log are logged. `tables`
        have a number for each class, or a matrix of classes:
        `{"f1": {"labels": ["cat", "dog"], "values": [0.9, 0.8]}}`. With `"mode": "max"`, higher is better,
        whatever the name says.
        """
        self._raise_if_finished("Log epochs")
        epoch = validation.non_negative_int("epoch", epoch, _EPOCH_ADVICE)
        if duration is not None:
            duration = validation.seconds("duration", duration)
        earlier_s = validation.seconds("earlier_s", earlier_s)
        checked = validation.tables(tables)
        numbers = self._graph_metrics.read(epoch, metrics)
        self._emit_last_steps()
        event = self._epochs.end(
            epoch,
            numbers,
            duration=duration,
            earlier_s=earlier_s,
            total_epochs=self.total_epochs,
            rank=self.rank,
        )
        if checked:
            event = replace(event, data={**event.data, "tables": checked})
        self.emit(event)
        self._non_finite.check(event)
        self._emit_all(self._watched.new_decisions())

    @explain_calls(MonitorCallError, example="Write monitor.log_step(step, {'loss': 0.5}).")
    def log_step(
        self,
        step: int,
        metrics: Metrics,
        *,
        epoch: int | None = None,
        also: Callable[[], Metrics] | None = None,
    ) -> None:
        """Record metrics within an epoch: call it at every step; `step_rate` limits how many are kept.

        `also` returns further metrics of the step, and is called only if some of the others are kept.

        It may be called several times per step with different metrics, and the last value before the end of
        an epoch or of the run is always kept. Steps count from the start of the run; if they restart at 0 in
        each epoch, they are renumbered and an alert says so. It never waits for a
        device: tensors are copied on their device and read in the background.
        """
        if self._is_forked:
            return
        if self._finished:
            self._raise_if_finished("Log steps")
        if type(step) is not int or step < 0:
            step = validation.non_negative_int("step", step, _STEP_ADVICE)
        if epoch is not None and (type(epoch) is not int or epoch < 0):
            epoch = validation.non_negative_int("epoch", epoch, _EPOCH_ADVICE)
        if also is not None and not callable(also):
            raise MonitorError(f"also is {also!r:.60}. Pass a function that returns a dict of metrics.")
        sampled = self._steps.sample(step, metrics, epoch)
        if sampled is None:
            return
        self._epochs.enter_loop()
        found = sampled[1] if also is None else sampled[1] | recorder.detached(also())
        data: dict[str, Any] = {"step": sampled[0], "metrics": found}
        if epoch is not None:
            data["epoch"] = epoch
        self.emit(Event("metrics", data, rank=self.rank))

    def progress(self, epoch: int, step: int, num_steps: int | None = None) -> None:
        """Record the position within an epoch: `step` of `num_steps` are done; call it at every step."""
        if self._finished:
            self._raise_if_finished("Report progress")
        epoch = validation.non_negative_int("epoch", epoch, _EPOCH_ADVICE)
        step = validation.non_negative_int("step", step, _STEP_ADVICE)
        if num_steps is not None:
            num_steps = validation.non_negative_int(
                "num_steps", num_steps, "Pass the number of steps in the epoch, or None."
            )
        self._epochs.check_progress(epoch, step, num_steps, self.total_epochs)
        if not self._progress_limit.is_due(force=step == num_steps):
            return
        self._epochs.enter_loop()
        self.emit(Event("progress", {"epoch": epoch, "step": step, "num_steps": num_steps}, rank=self.rank))

    def alert(self, message: str, *, level: str = "warning", path: str | None = None) -> None:
        """Show a message to the user; `level` is info, warning or error."""
        self._raise_if_finished("Send alerts")
        if not isinstance(message, str):
            raise MonitorError(f"the message of the alert is {message!r:.60}. Pass a string.")
        self._alert(message, level=level, path=path)

    def emit(self, event: Event) -> None:
        """Record any event without waiting for the journal. In a forked child, this does nothing."""
        if self._is_forked:
            return
        validation.event(event)
        self._journal.write(event)
        self._views.dispatch(event)

    def flush(self) -> None:
        """Wait until everything so far is in the journal on disk and the sinks have written it.

        A `Trainer` calls this before a save is valid, so that the journal has every epoch that was saved.
        """
        if not self._is_forked:
            self._journal.sync()
            self._views.flush()

    def add_missing(self, history: Iterable[Mapping[str, Any]]) -> None:
        """Record the epochs of a resumed run that the journal lacks: rows with `epoch`, from 1, and metrics.

        A `Trainer` calls this. The process that trained them was killed before it could record them.
        """
        for event in recorder.missing_epochs(self.history, history, rank=self.rank):
            self._raise_if_finished("Add epochs")
            self._epochs.add(event, self.total_epochs)
            self.emit(event)

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Ignore what is logged inside the context, by a step that is only tried out."""
        before, self._is_forked = self._is_forked, True
        try:
            yield
        finally:
            self._is_forked = before

    def finish(self, status: str = "finished", message: str | None = None) -> None:
        """End the run as "finished", "stopped" or "failed". Only the first call has an effect."""
        validation.one_of("status", status, validation.STATUSES)
        if self._finished:
            return
        self._finished = True
        atexit.unregister(self._finish_at_exit)
        for source in self._sources:
            source.stop()
        self._emit_last_steps()
        self._emit_all(self._watched.new_decisions())
        self._watched.draw_profile()
        self._journal.flush()
        # Epoch durations may come from a different clock: the total is never less than their sum.
        duration_s = max(time.monotonic() - self._started_s, self._epochs.total_s)
        data = {"status": status, "duration_s": duration_s}
        self.emit(Event("run_end", data if message is None else {**data, "message": message}, rank=self.rank))
        self._journal.flush()
        self._views.close()  # before the journal, so that alerts about closing are written
        self._journal.close()
        self._page.finish()
        if self._archive is not None:
            try:
                log.msg("  saved: %s", exports.save_html(self._archive, [self._journal.reader()]))
            except MonitorError as error:  # a full disk must not fail a run that has ended
                log.warn("the saved page is not up to date: %s", error)

    def close(self) -> None:
        """Finish the run if it has not finished, and close the page immediately."""
        self.finish()
        self._page.close()

    def save_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the page with all of its data as one file, now and again when the run ends."""
        self._archive = exports.save_html(validation.file(path), [self._journal.reader()])
        return self._archive

    def export_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write a table with a row for each epoch and a column for every metric of any epoch."""
        return exports.export_csv(validation.file(path), self._journal.reader(), rank=self.rank)

    def write_log(self, path: str | os.PathLike[str]) -> Path:
        """Write a text log with a line for each epoch."""
        return exports.write_log(validation.file(path), self._journal.reader(), rank=self.rank)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.finish(*recorder.end_status(error))

    def after_fork_in_child(self) -> None:
        """Stop recording: this is a copy in a forked child, and the run belongs to its parent."""
        self._is_forked = self._finished = True

    def _raise_if_finished(self, action: str) -> None:
        if self._finished and not self._is_forked:
            raise MonitorError(f"the run has finished. {action} before calling finish().")

    def _alert(self, message: str, *, level: str = "warning", path: str | None = None) -> None:
        validation.one_of("level", level, validation.LEVELS)
        validation.of_type("path", path, str, "Pass a dotted path, such as 'encoder.layer.0', or omit it.")
        where = {} if path is None else {"path": path}
        self.emit(Event("alert", {"message": message, "level": level, **where}, rank=self.rank))

    def _emit_last_steps(self) -> None:
        for step, epoch, metrics in self._steps.take_skipped():
            data = {"step": step, "metrics": metrics, **({"epoch": epoch} if epoch >= 0 else {})}
            self.emit(Event("metrics", data, rank=self.rank))

    def _emit_settings(self, settings: Mapping[str, Any], origins: Mapping[str, str]) -> None:
        data = recorder.config_data(self.total_epochs, settings, origins)
        self.emit(Event("config", data, rank=self.rank))

    def _emit_all(self, events: Iterable[Event]) -> None:
        for event in events:
            self.emit(event)

    def _on_journal_alert(self, event: Event) -> None:
        self.emit(replace(event, rank=self.rank))

    def _check_step_metrics(self, batch: list[Entry]) -> None:
        for entry in batch:
            if entry.event.kind == "metrics" and isinstance(entry.event.data["metrics"], Mapping):
                self._non_finite.check(entry.event)

    def _finish_at_exit(self) -> None:
        """End a run whose program exits without `finish`, with the exception that caused it, if any."""
        error = getattr(sys, "last_value", None)
        if error is None:
            self.finish("stopped", "the program ended without finish()")
        else:
            self.finish(*recorder.end_status(error))
