"""The run behind a trainer: connects its parts, sets up and ends a run, and follows up on each batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from os import PathLike
from typing import Any, NoReturn
from weakref import ReferenceType

from torch import Tensor

from flodl.checkpoint import Policy
from flodl.core import TrainError, WriteError, log
from flodl.core.integers import is_integer
from flodl.data import Loader
from flodl.engine import Collector, calm_collector
from flodl.graph import Graph
from flodl.graph.trainer_epochs import check_not_recorded
from flodl.monitor import Monitor

from .batches.cursor import BatchCursor
from .batches.loaders import Loaders
from .batches.recent import RecentBatches
from .callbacks.dispatch import Hooks
from .callbacks.schedulers import idle_scheduler, sets_rate, unsaved_schedulers
from .callbacks.standard import MetricWatcher
from .callbacks.watched import (
    all_watched,
    how_added,
    late_phases,
    may_add_metrics,
    notes_of,
    without_evaluation,
)
from .checks.start import unused_precision, warnings_at_start
from .checks.trained_before import earlier_run, note_of, other_weights_note, remember_training
from .evaluation.batch_values import BatchValues
from .evaluation.evaluator import Evaluator
from .evaluation.modes import note_of_chosen, preserve_modes
from .faults.rollback import NonFinitePolicy
from .faults.signals import StopRequest
from .learning_rate import follows_loss
from .limit import check_limit
from .progress import Progress, Stage
from .record.recorder import UNKNOWN, Recorder
from .reporting import Reports
from .result import FitResult
from .saving.changes.changed_record import nothing_left
from .saving.missing_state.unsaved import UnsavedState
from .saving.run_folder.directory import RunDirectory
from .saving.saver import Saver
from .session import Session
from .step_metrics import step_metrics

CHECK_EVERY = 1024


class Run:
    """The parts of a run, each with one job; users see the `Trainer` around it."""

    def __init__(
        self,
        session: Session,
        evaluator: Evaluator,
        hooks: Hooks,
        *,
        monitor: Monitor | bool | None,
        checkpoint_dir: str | PathLike[str] | None,
        keep: Policy | None,
        config: Mapping[str, Any],
    ) -> None:
        settings = session.settings
        self.session, self.evaluator, self.hooks = session, evaluator, hooks
        self.reports = Reports(monitor, settings.log_every)
        hooks.stop_requests.report = self.reports.note
        self.stop_request = StopRequest()
        self.cursor = BatchCursor(session)
        self.loaders = Loaders(session, self.cursor)
        directory: RunDirectory | None = None
        if checkpoint_dir is not None:
            directory = RunDirectory(
                checkpoint_dir,
                keep=keep.with_modes(evaluator.modes) if isinstance(keep, Policy) else keep,
                when_disk_fails=settings.when_disk_fails,
                report=self.reports.event,
                before_save=self.reports.flush,
                on_error=_disk_error_reporter(self.reports, self.stop_request),
            )
        for hook in hooks.all:
            if isinstance(hook, MetricWatcher):
                hook.adopt_modes(evaluator.modes)
                hook.added = how_added(hook.metric, hooks.all)
        recent = RecentBatches(session, self.cursor)
        self.nonfinite = NonFinitePolicy(session, directory, recent, self.reports.warn)
        self.saver: Saver | None = None
        if directory is not None:
            self.saver = Saver(
                session,
                directory,
                self.cursor,
                hooks,
                self.stop_request,
                self.nonfinite.settle,
                modes=evaluator.modes,
            )
        own_keep = None if directory is None else directory.keep
        self.recorder = Recorder(evaluator, hooks, keep=own_keep, config=config)
        self.collector: Collector | None = None
        self.stage = Stage.CLOSED
        self.progress = Progress()
        # What changes the folder besides the record, done when the run begins.
        self.at_begin: list[Callable[[], object]] = []
        # The loader of the last epoch in this process, the number of its batches, and the epoch.
        self.last_epoch: tuple[ReferenceType[Loader], int | None, int] | None = None
        # Whether this trainer has completed an epoch in this process.
        self.has_trained = False
        # What was reported once; a loss if the schedule follows it now, "" for none.
        self.reported: set[str] = set()
        follows_loss(session.train_step.schedule)
        self._has_step_hooks = hooks.has("on_step_end")

    @property
    def directory(self) -> RunDirectory | None:
        """The run directory, if there is one."""
        return None if self.saver is None else self.saver.directory

    @property
    def watched(self) -> list[tuple[str, str]]:
        """Who watches which metric: the hooks, and the policy of the bundles."""
        return all_watched(self.hooks.all, None if self.directory is None else self.directory.keep)

    @property
    def follows_loss(self) -> bool:
        """Whether the schedule follows a metric, which is the loss in a trainer."""
        return follows_loss(self.session.train_step.schedule)

    @property
    def always_evaluates(self) -> bool | None:
        """Whether every epoch of this run ends with an evaluation, or none; None if a loop decides."""
        eval_data = self.progress.eval_data
        return None if self.stage is Stage.CLOSED or eval_data is UNKNOWN else eval_data is not None

    @property
    def early_stop_reason(self) -> str:
        """Why the run ended early, or ""; a stop after the last epoch is not early."""
        session = self.session
        return "" if session.epochs == self.progress.total_epochs else session.stop_reason

    @contextmanager
    def open(self, epochs: int, limit: int | None = None) -> Iterator[None]:
        """Set up the signals, the lock and the collector, and close everything in order.

        Nothing is written before the run begins, so a start that is rejected changes nothing.
        """
        session, saver = self.session, self.saver
        if not is_integer(epochs, at_least=1):
            raise TrainError(f"epochs={epochs!r}. Use an integer of at least 1.")
        if self.stage is not Stage.CLOSED:
            raise TrainError("this trainer is already running. Create another one for a run inside a run.")
        check_limit(session, limit)
        with ExitStack() as stack:
            if saver is not None:
                # First: a signal in the first milliseconds has the same exit code as any other.
                stack.enter_context(self.stop_request.listen())
                stack.callback(saver.directory.release)
                saver.directory.lock()
            session.stop_reason, self.stage = "", Stage.OPEN
            # A completed call of `fit` records no start: the next call does what it has left to do.
            if not session.fit_calls.loads_again:
                self.at_begin = []
            # Before the dry pass, which writes to the parameters when it restores them.
            earlier = earlier_run(session)
            self.progress = Progress(epochs, limit, earlier=earlier)
            session.epoch_start_s = time.perf_counter()
            stack.callback(session.pause_epoch)
            stack.callback(remember_training, session)
            stack.callback(setattr, self, "stage", Stage.CLOSED)
            stack.enter_context(self.reports.open(lambda: self.early_stop_reason))
            stack.enter_context(preserve_modes(session.model))
            stack.callback(session.train_step.close)
            if saver is not None:
                stack.callback(saver.directory.close)
            self._observe(stack)
            self.collector = stack.enter_context(calm_collector())
            stack.callback(setattr, self, "collector", None)
            self.exit_if_asked()
            yield
            self.start()
            if not self.progress.has_returned:
                if session.epochs < epochs or (saver is not None and saver.is_behind):
                    self.begin()
                self._report_done(epochs)
            if self.stage is Stage.BEGUN and saver is not None:
                saver.save_end()
            self.exit_if_asked()
            self.hooks.call("on_end", result=self.result())
            if self.is_complete and self.stage is not Stage.BEGUN:
                self.reports.complete(None if saver is None else saver.directory.path, self._restored)
            if self.stop_request:
                # Everything is saved already.
                self.stop_request.exit(has_ended=True)

    @property
    def keeps_record(self) -> bool:
        """Whether the start of a run is recorded, in a folder or by a monitor."""
        return self.saver is not None or self.reports.keeps_record

    @property
    def is_complete(self) -> bool:
        """Whether all epochs that this run is to have are done."""
        return self.stage is not Stage.CLOSED and self.session.epochs == self.progress.total_epochs

    def _observe(self, stack: ExitStack) -> None:
        """Take what the run is made of, now and when it ends; report what changed since it last trained."""
        changed = [*self.recorder.observe(self.session)]
        settings = self.recorder.observe_settings(self.session)
        stack.callback(self.recorder.observe_end, self.session)
        if (average := self.session.average) is not None:
            stack.callback(average.remember)
        if average is not None and average.is_left_behind:
            changed.append(
                "the weights were changed, and their average (ema) continues from the earlier ones; "
                "trainer.average.load_state_dict(dict(model.named_parameters())) starts it again"
            )
        elif self.recorder.has_other_weights and (note := other_weights_note(self.session)):
            self.reports.note(note)
        self.report_changed(changed)
        # The program has set these itself, for example by thawing a part after the first epochs.
        self.report_changed(settings, as_note=True)

    def report_changed(self, changed: Iterable[str], *, as_note: bool = False) -> None:
        """Report what changed since this trainer trained last, if anything did."""
        if lines := list(changed):
            report = self.reports.note if as_note else self.reports.warn
            report(f"since this trainer trained last, {'; '.join(lines)}")

    def _report_done(self, epochs: int) -> None:
        """Report that nothing was left to train, and that the results are those of the saved settings."""
        session, changed = self.session, self.progress.differences
        if not changed and self.stage is Stage.BEGUN:
            return
        message, is_warning = nothing_left(session.epochs, changed), bool(changed)
        if self.last_epoch is not None and self.last_epoch[0]() is not session.loader:
            message += f". epochs={epochs} is a total, and the data of this call was not used"
            message += f": write epochs={session.epochs + 1} for one more epoch, or use a new Trainer."
            is_warning = True
        elif self.has_trained and not changed and "total" not in self.reported:
            self.reported.add("total")
            message += f". epochs={epochs} is a total over all calls of fit. For one more epoch write "
            message += "trainer.fit(…, epochs=trainer.epochs + 1), or loop over trainer.epoch(data)."
            is_warning = True
        self.reports.event("alert", message=message, level="warning" if is_warning else "info")

    @property
    def is_pending(self) -> bool:
        """Whether a start is not recorded yet."""
        return self.stage is Stage.OPEN or self.stage is Stage.STARTED

    def start(self) -> None:
        """Call `on_start`, once in a run, when nothing that was saved speaks against the start."""
        if self.stage is Stage.OPEN:
            self.stage = Stage.STARTED
            self.hooks.call("on_start")
            self.hooks.note_created()
            if self.saver is not None:
                self.hooks.check_states()
                for warning in unsaved_schedulers(self.hooks.all):
                    self.reported.add(warning)
                    self.reports.warn(warning)

    def watch_unsaved(self, loader: Loader) -> None:
        """Report, when the first bundle is saved, what the run has changed and no bundle contains."""
        settings, saver = self.session.settings, self.saver
        if saver is None or not (settings.save_every or settings.save_every_steps):
            return
        # Without a reference to the run, which is freed with its trainer.
        warn, reported = self.reports.warn, self.reported
        try:
            watched = UnsavedState(self.session, self.hooks.all, self.evaluator.step_fn, loader)
        except Exception as error:  # raised by a user object
            log.debug("the search for unsaved state: %s: %s", type(error).__name__, error)
            return

        def report() -> None:
            for warning in watched.warnings():
                if warning not in reported:
                    warn(warning)

        saver.before_first_save = report

    def report_no_evaluation(self) -> None:
        """Report what a run without evaluation leaves unused; the dry pass rejects a metric that is missing.

        Metric objects may be used by a later call of `evaluate`.
        """
        session = self.session
        if not session.settings.dry_pass and not self.is_complete and not may_add_metrics(self.hooks.all):
            for warning in without_evaluation(self.watched, session.history):
                self.reports.warn(warning)
        if metrics := self.evaluator.metrics:
            names = ", ".join(map(repr, metrics))
            self.reports.note(f"no eval_data, so metrics ({names}) are computed only by trainer.evaluate")

    def report_no_folder(self, how: object) -> None:
        """Report once that nothing can be resumed, because the run has no folder."""
        if self.saver is None and how == "auto" and "no folder" not in self.reported:
            self.reported.add("no folder")
            self.reports.note(
                "trainer.resume has nothing to resume: the trainer has no checkpoint_dir. Write "
                "Trainer(…, checkpoint_dir=…), or name a run: trainer.resume(data, how='runs/first')."
            )

    def report_no_epoch(self) -> None:
        """Report once that batches are trained on outside an epoch, which therefore never ends."""
        if "no epoch" in self.reported:
            return
        self.reported.add("no epoch")
        saves = self.saver is not None and self.session.settings.save_every is not None
        report, no_save = (self.reports.warn, ", no save") if saves else (self.reports.note, "")
        report(
            "trainer.step was called outside of trainer.epoch, so no epoch is counted: there is no history, "
            f"no evaluation{no_save} and no hook at the end of an epoch. Write `for batch in trainer.epoch("
            "data, batch_size): trainer.step(batch)`; for a loop without epochs, use a TrainStep."
        )

    def report_values(self, judged: BatchValues) -> None:
        """Report once which named values depend on the batch size; some are decided after an epoch."""
        self.progress.undecided = judged.undecided
        for text, report in ((judged.warning, self.reports.warn), (judged.note, self.reports.note)):
            if text and text not in self.reported:
                self.reported.add(text)
                report(text)

    def when_begun(self, action: Callable[[], object]) -> None:
        """Call a function that changes the folder once the start is recorded."""
        if self.is_pending:
            self.at_begin.append(action)
        else:
            action()

    def refuse_earlier_run(self) -> None:
        """Raise if a run that starts from scratch would mix its saves with those of another one."""
        if self.saver is not None and not self.session.updates:
            self.saver.directory.refuse_earlier_run()

    def begin(self) -> None:
        """Record the start in the folder and the journal, once in a run, before anything is trained."""
        session, saver = self.session, self.saver
        if not self.is_pending:
            return
        self.refuse_earlier_run()
        epochs = self.progress.total_epochs
        assert epochs is not None
        record: dict[str, Any] = {}
        if self.keeps_record:
            record = self.recorder.record(session, epochs=epochs, eval_loader=self._eval_loader)
            session.start.record = record
        with nullcontext() if saver is None else saver.directory.begin(record, step=session.updates):
            self.reports.begin(
                None if saver is None else saver.directory.journal_folder,
                shown=(session.model, session.train_step),
                total_epochs=epochs,
                config=record,
                step_metrics=self._step_metrics,
                restored=self._restored,
                continues_folder=saver is None or saver.directory.has_bundles,
            )
        self.stage = Stage.BEGUN
        for note in notes_of(self.hooks.all, None if saver is None else saver.directory.keep):
            self.reports.note(note)
        if chosen := note_of_chosen(session.model):
            self.reports.note(chosen)
        unused = "" if session.train_step.schedule is None else session.train_step.schedule.note
        if unused and unused not in self.reported:
            self.reported.add(unused)
            self.reports.note(unused)
        if unused := unused_precision(session):
            self.reports.note(unused)
        if note := note_of(self.progress.earlier, session):
            self.reports.event("alert", message=note, level="info")
        own_rate = sets_rate(session.optimizer, self.hooks.all, self.evaluator.step_fn)
        for warning in warnings_at_start(
            session, epochs=epochs, num_batches=self.progress.num_batches, sets_rate=own_rate
        ):
            self.reports.warn(warning)
        for warning in late_phases(self.hooks.all, epochs):
            self.reports.warn(warning)
        # A loop of the user may step a scheduler itself.
        in_fit = self.always_evaluates is not None and epochs > session.epochs + 1
        if in_fit and session.schedule is None:
            for warning in idle_scheduler(session.optimizer, self.hooks.all, self.evaluator.step_fn):
                self.reports.warn(warning)
        while self.at_begin:
            self.at_begin.pop(0)()
        if saver is not None:
            saver.check_space(epochs)

    @property
    def _restored(self) -> list[dict[str, Any]]:
        """The rows of the history that were restored from the folder of this run."""
        epochs = self.session.start.restored_epochs
        return self.session.history[epochs.start : epochs.stop]

    @property
    def _eval_loader(self) -> Loader | None:
        """The loader of the evaluation data, which a run that ends an interrupted epoch has not read yet."""
        data = self.progress.eval_data
        if data is UNKNOWN:
            return self.loaders.evaluation
        # A call of `evaluate` may have used other data before.
        return None if data is None else self.loaders.evaluation_loader(data)

    def _step_metrics(self) -> dict[str, Any]:
        """Return what is known of the last update besides its loss; with several devices, nothing is."""
        if self.session.settings.devices:
            return {}
        means = {name: mean for name, mean in self.progress.window.last.items() if name != "loss"}
        return step_metrics(self.session) | means

    @property
    def averages_windows(self) -> bool:
        """Whether steps are recorded, and each is the mean of the batches that an update accumulates."""
        reporter = self.reports.current
        records = reporter is not None and reporter.records_steps
        return records and self.session.train_step.settings.accumulate > 1

    def add_to_window(self, loss: Tensor, samples: int, *, is_first: bool) -> None:
        """Add a batch to the means of its accumulation window."""
        self.progress.window.add({**self.session.train_step.values, "loss": loss}, samples, is_first=is_first)

    def after_batch(self, batch: Any, loss: Tensor, *, steps_before: int) -> None:
        """Count a batch that was trained on, follow up on its update, report it, and save if it is time.

        A batch that `tail="drop"` left out has no loss.
        """
        session, saver, reporter = self.session, self.saver, self.reports.current
        session.position.epoch_step += 1
        if session.skipped is not None:
            self.nonfinite.recent.add(batch)
        updated = self.after_update()
        is_dropped = not updated and session.train_step.steps == steps_before
        if reporter is not None and not reporter.is_silent:
            step = session.position.epoch_step
            reporter.progress(session.epochs, step, self.progress.num_batches)
            if updated:
                self.report_update(loss)
        if self._has_step_hooks and not is_dropped:
            self.progress.last_batch = batch, loss
            if updated:
                self.call_step_hooks()
        if saver is not None:
            if updated:
                saver.save_if_due()
            if saver.directory.finished:
                saver.call_hooks()
        if session.position.epoch_step == 1 and isinstance(session.model, Graph):
            check_not_recorded(session.model, ("loss", "lr", *session.train_step.values))
        if session.position.epoch_step % CHECK_EVERY == 0:
            session.check_parameters()
            if self.collector is not None:
                self.collector.collect_if_growing()

    def report_update(self, loss: Tensor | None = None) -> None:
        """Report the loss of an update: that of its batch, or the mean of its accumulation window."""
        session, reporter, window = self.session, self.reports.current, self.progress.window
        if reporter is None or not reporter.records_steps:
            return
        accumulate = session.train_step.settings.accumulate
        if accumulate > 1:
            window.close()
            loss = window.last.get("loss")
        if loss is not None:
            number = -(-session.position.epoch_step // accumulate)
            reporter.update(session.epochs, number, session.updates_seen, loss)

    def call_step_hooks(self) -> None:
        """Call `on_step_end` after an update; the batch is the last one of its accumulation window."""
        session, last = self.session, self.progress.last_batch
        if last is not None:
            self.progress.last_batch = None
            batch, loss = last
            self.hooks.call(
                "on_step_end", batch=batch, loss=loss, epoch=session.epochs, step=session.updates_seen
            )

    def after_update(self) -> bool:
        """Average the weights and check for non-finite values; return whether there was an update."""
        session = self.session
        updates = session.train_step.updates
        if updates == session.updates_seen:
            return False
        session.updates_seen = updates
        if session.average is not None:
            session.average.update(session.train_step.skipped)
        if session.skipped is not None and (skipped := session.skipped.check(updates)):
            self.nonfinite.handle(skipped)
        return True

    def exit_if_asked(self) -> None:
        """Save the run and exit the program if a signal asked for it."""
        if self.stop_request:
            self.save_and_exit()

    def save_and_exit(self) -> NoReturn:
        """Save the run and exit the program; an incomplete accumulation window is abandoned."""
        session, saver, request = self.session, self.saver, self.stop_request
        if session.start.is_fresh and not session.updates:
            request.exit(has_begun=False)
        lost = ""
        if saver is not None:
            self.begin()
            self.cursor.abandon_window()
            if not saver.save(wait=True, reason=request.signal):
                bundle, _ = saver.directory.find()
                outlook = "There is no bundle to resume from."
                if bundle is not None:
                    outlook = f"When started again, it resumes from its newest bundle, of step {bundle.step}."
                lost = f"{request.signal}; the run could not be saved at step {session.updates}. {outlook}"
        request.exit(lost)

    def result(self) -> FitResult:
        """Return the result of the run so far."""
        session, reason = self.session, self.early_stop_reason
        return FitResult(
            history=[dict(row) for row in session.history],
            steps=session.updates,
            status="stopped" if reason else "finished",
            reason=reason,
            run_dir=None if self.saver is None else self.saver.directory.path,
            report=session.train_step.report(),
            ranks=self.progress.ranks,
            tables=dict(self.progress.tables),
            modes=self.evaluator.modes,
            evaluated_since=self.session.start.evaluated_since,
        )


def _disk_error_reporter(reports: Reports, request: StopRequest) -> Callable[[WriteError], None]:
    """Return a callback that does not keep the run alive."""

    def report(error: WriteError) -> None:
        outlook = "The run ends with its last successful save." if request else "Training continues."
        reports.event("alert", message=f"{error} {outlook}", level="error")

    return report
