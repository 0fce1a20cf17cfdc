"""Reports of a run: to a monitor with its journal and page, to the console, or to nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from flodl.core import MetricError, MonitorError, TrainError, log
from flodl.core.environment import monitor_requested
from flodl.monitor import Event, Monitor, complete_journal, set_aside_earlier_run, step_note
from flodl.monitor.run_settings.found import with_published


class StepNotes:
    """The notes of a training step about its batches, for a run without a monitor; each once."""

    def __init__(self) -> None:
        self._num_seen = 0

    def new_of(self, step: Any) -> list[Event]:
        """Return the notes of a step since the last call as events."""
        events = step.report().events
        seen, self._num_seen = self._num_seen, len(events)
        return [step_note(event) for event in events[seen:] if event.is_about_batches]


class RunReporter:
    """Pass the events of one run to its monitor or to the console."""

    def __init__(
        self,
        monitor: Monitor | bool | None,
        run_dir: Path | None,
        *,
        total_epochs: int,
        config: Mapping[str, Any],
        log_every: int | None = None,
        step_metrics: Callable[[], Mapping[str, Any]] = dict,
        notes: StepNotes | None = None,
    ) -> None:
        self._log_every, self._step_metrics = log_every, step_metrics
        self._notes = notes or StepNotes()
        # The update and the epoch of the last loss within an epoch, if the monitor did not take the rest.
        self._incomplete: tuple[int, int] | None = None
        if monitor is None and monitor_requested():
            monitor = True
        self._monitor: Monitor | None = None
        self._console: Any = None
        self._owns_monitor = not isinstance(monitor, Monitor)
        if isinstance(monitor, Monitor):
            self._monitor = monitor
            # A monitor may see several calls of fit, with more epochs each.
            monitor.total_epochs = max(monitor.total_epochs, total_epochs)
            values, origins = with_published(config)
            monitor.describe(values, origins=origins)
        elif monitor or (run_dir is not None and monitor is None):
            values, origins = with_published(config)
            self._monitor = Monitor(total_epochs, run_dir, config=values, origins=origins)
            if monitor:
                self._monitor.serve()
        elif monitor is None:
            from flodl.monitor import Console

            self._console = Console(total_epochs)
            self._console(Event("run_start", {"total_epochs": total_epochs}))
        self.is_silent = self._monitor is None and self._console is None

    def watch(self, *things: Any) -> None:
        """Show a model or a training step."""
        if self._monitor is not None:
            for thing in things:
                self._monitor.watch(thing, describe=False)  # the record of the run has its settings

    def show_notes(self, step: Any) -> None:
        """Show the new notes of a step about its batches; a monitor that watches the step does it itself."""
        if self._monitor is None:
            for event in self._notes.new_of(step):
                if self._console is not None:
                    self._console(event)
                else:
                    log.msg("  %s: %s", event.data["about"], event.data["message"])

    @property
    def records_steps(self) -> bool:
        """Whether the metrics of steps are recorded."""
        return self._monitor is not None and self._log_every is not None

    def progress(self, epoch: int, step: int, num_steps: int | None) -> None:
        """Report the position within an epoch: how many of its batches are done."""
        if self._monitor is not None:
            self._monitor.progress(epoch, step, num_steps)
        elif self._console is not None:
            self._console(Event("progress", {"epoch": epoch, "step": step, "num_steps": num_steps}))

    def update(self, epoch: int, number: int, update: int, loss: Tensor) -> None:
        """Report the metrics of every `log_every`-th update; `number` counts those of the epoch.

        This does not wait for the device: values are passed on as tensors. Those besides the loss are taken
        only where the monitor keeps the loss, a few times per second.
        """
        if self._monitor is not None and self._log_every is not None and number % self._log_every == 0:
            self._incomplete = update, epoch
            self._monitor.log_step(update, {"loss": loss}, epoch=epoch, also=self._take_metrics)

    def epoch(
        self,
        epoch: int,
        metrics: Mapping[str, float],
        duration_s: float,
        tables: Mapping[str, Any],
        *,
        earlier_s: float,
    ) -> None:
        """Report the end of an epoch; `tables` are results of each class and matrices.

        `earlier_s` is the part of the duration that earlier starts spent in this epoch.
        """
        self._incomplete = None
        if self._monitor is not None:
            self._monitor.log(epoch, metrics, duration_s, tables=tables, earlier_s=earlier_s)
        elif self._console is not None:
            data = {"epoch": epoch, "metrics": dict(metrics), "duration_s": duration_s}
            self._console(Event("epoch", data))

    def restore(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Record the epochs of a restored history that the monitor does not have."""
        if self._monitor is not None and history:
            self._monitor.add_missing(history)

    def flush(self) -> None:
        """Return when everything so far is on disk."""
        if self._monitor is not None:
            self._monitor.flush()

    def event(self, kind: Any, **data: Any) -> None:
        """Report any other event; warnings are logged even if nobody listens."""
        event = Event(kind, data)
        if self._monitor is not None:
            self._monitor.emit(event)
        elif self._console is not None:
            self._console(event)
        elif kind == "alert" and data["level"] != "info":
            log.warn("%s", data["message"])

    def complete_last_step(self) -> None:
        """Report the other metrics of the last update, whose loss is kept in any case, if no epoch ended.

        Call it only between two steps: the values are those of the last one.
        """
        last = self._incomplete
        if self._monitor is not None and last is not None and (metrics := self._take_metrics()):
            with suppress(MetricError, MonitorError):  # the user may have finished the monitor
                self._monitor.log_step(last[0], metrics, epoch=last[1])

    def _take_metrics(self) -> Mapping[str, Any]:
        self._incomplete = None
        return self._step_metrics()

    def stopped(self, reason: str) -> None:
        """Report why a run ends early, unless `finish` does: a monitor with its run says so itself."""
        if self._console is not None:
            self._console(Event("run_end", {"status": "stopped", "message": reason}))
        elif self._monitor is not None and not self._owns_monitor:
            self.event("alert", message=f"training stopped: {reason}", level="info")

    def finish(self, status: str, message: str | None = None) -> None:
        """Report the end; a monitor that the user created stays open."""
        if self._monitor is not None and self._owns_monitor:
            self._monitor.finish(status, message)
        if self._console is not None:
            self._console.close()


class _Reported(NamedTuple):
    """An event, and whether it is a note that is logged even if nobody listens."""

    kind: str
    data: dict[str, Any]
    is_note: bool = False


class Reports:
    """The reporter of the current run, and the log between runs.

    Events that occur before a run begins are reported when it does. If it does not, because there is nothing
    to train or the start was rejected, alerts are logged.
    """

    def __init__(self, monitor: Monitor | bool | None, log_every: int | None) -> None:
        if not isinstance(monitor, Monitor | bool | None):
            raise TrainError(
                f"monitor={monitor!r}. Use a Monitor, True for a live page, or False for no output."
            )
        self.monitor, self._log_every = monitor, log_every
        self.current: RunReporter | None = None
        # A user's monitor may see several runs, and is shown the model once.
        self._is_model_shown = False
        self._has_begun, self._step_notes = False, StepNotes()
        # The events before a run began; None if no run is open, or if it has begun.
        self._waiting: list[_Reported] | None = None

    @property
    def keeps_record(self) -> bool:
        """Whether there is a monitor that shows the settings of a run."""
        return bool(self.monitor) or (self.monitor is None and monitor_requested())

    @contextmanager
    def open(self, stop_reason: Callable[[], str]) -> Iterator[None]:
        """Report how a run ends, if it began inside the context."""
        self._waiting = []
        try:
            yield
        except BaseException as error:
            if isinstance(error, SystemExit) and self.current is not None:
                self.current.complete_last_step()
            status = "stopped" if isinstance(error, SystemExit | KeyboardInterrupt) else "failed"
            self._end(status, f"{type(error).__name__}: {error}")
            raise
        if self.current is not None:
            self.current.complete_last_step()
        reason = stop_reason()
        if reason and self.current is not None:
            self.current.stopped(reason)
        self._end("stopped" if reason else "finished", reason or None)

    def begin(
        self,
        run_dir: Path | None,
        *,
        shown: tuple[Any, ...],
        total_epochs: int,
        config: Mapping[str, Any],
        step_metrics: Callable[[], Mapping[str, Any]] = dict,
        continues_folder: bool = True,
        restored: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Report the start of a run; `shown` is the model and the step to display, `restored` the epochs that
        were loaded from its folder. A process that was killed may not have recorded those.

        `continues_folder` is whether the run was saved in the folder before; if it was not, a journal there
        is that of an earlier run.
        """
        writes_journal = self.monitor is None or self.monitor is True
        if run_dir is not None and writes_journal and not (continues_folder or self._has_begun):
            kept = set_aside_earlier_run(run_dir)
            if kept is not None:
                log.msg(
                    "  a new run starts: the journal of an earlier run in this folder is now %s", kept.name
                )
        self._has_begun = True
        reporter = RunReporter(
            self.monitor,
            run_dir,
            total_epochs=total_epochs,
            config=config,
            log_every=self._log_every,
            step_metrics=step_metrics,
            notes=self._step_notes,
        )
        reporter.restore(restored)
        self.current, waiting, self._waiting = reporter, self._waiting, None
        if not self._is_model_shown:
            reporter.watch(*shown)
        self._is_model_shown = isinstance(self.monitor, Monitor)
        for reported in waiting or ():
            self._report(reported)

    def complete(self, run_dir: Path | None, restored: Sequence[Mapping[str, Any]]) -> None:
        """Complete the record of a run that is done: the process that trained it may have been killed."""
        if isinstance(self.monitor, Monitor):
            with suppress(MonitorError):  # the user may have finished the monitor
                self.monitor.add_missing(restored)
        elif run_dir is not None and self.monitor is not False:
            complete_journal(run_dir, restored)

    def flush(self) -> None:
        """Return when everything that was reported is on disk."""
        reporter = self.current
        if reporter is not None:
            reporter.flush()

    def _end(self, status: str, message: str | None) -> None:
        reporter, self.current = self.current, None
        waiting, self._waiting = self._waiting, None
        for reported in waiting or ():
            self._report(reported)
        if reporter is not None:
            reporter.finish(status, message)

    def event(self, kind: str, **data: Any) -> None:
        """Report an event; between runs, alerts are logged."""
        self._report(_Reported(kind, data))

    def warn(self, message: str) -> None:
        """Report a warning."""
        self.event("alert", message=message, level="warning")

    def note(self, message: str) -> None:
        """Report a choice that decides about results; it is logged even if nobody listens."""
        self._report(_Reported("alert", {"message": message, "level": "info"}, is_note=True))

    def _report(self, reported: _Reported) -> None:
        reporter = self.current  # another thread may report, too
        if reporter is not None:
            reporter.event(reported.kind, **reported.data)
            if reported.is_note and reporter.is_silent:
                log.msg("  %s", reported.data["message"])
        elif self._waiting is not None:
            self._waiting.append(reported)
        elif reported.kind == "alert":
            level, message = reported.data["level"], reported.data["message"]
            if level != "info":
                (log.error if level == "error" else log.warn)("%s", message)
            elif reported.is_note or self.monitor is not False:
                log.msg("  %s", message)
