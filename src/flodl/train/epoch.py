"""The beginning, the batches and the end of an epoch; an interrupted end is repeated after a resume."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterator, Mapping
from itertools import islice
from typing import Any, cast
from weakref import ref

from flodl.core import TrainError
from flodl.core.formats import counted
from flodl.core.interrupts import uninterrupted
from flodl.core.usage.tracebacks import hide_own_frames
from flodl.data import Loader
from flodl.engine import enter_training
from flodl.graph import Graph, reset_carried_values
from flodl.graph.trainer_epochs import SECOND_END, after_epoch, record_epoch, start_run
from flodl.optim import ScheduleBridge

from .batches.batch_lists import hint_at_batches
from .batches.loaders import num_batches
from .callbacks.watched import never_measured
from .checks.schedule_functions import function_has_decayed
from .dry_pass import dry_pass
from .epoch_means import epoch_means
from .evaluation.batch_values import BatchValues, counts_in
from .evaluation.metrics import components_of, with_modes
from .evaluation.modes import modes_of
from .evaluation.names import SKIPPED, as_number, check_names, check_number, with_prefix
from .faults.nan_evaluation import nan_evaluation
from .faults.nan_values import nan_values
from .faults.skipped import num_skipped_in_epoch, skipped_alert
from .learning_rate import (
    followed_loss,
    forget_best,
    learning_rate,
    named_rate,
    optimizer_settings,
    reset_schedule,
)
from .limit import check_limit
from .progress import Stage
from .run import Run
from .session import Session

MAX_EMPTY_EPOCHS = 1000


class _Interrupted(Exception):
    """A signal asked the run to stop during an evaluation."""


def run_epoch(
    run: Run, data: Any, batch_size: int | None, eval_data: Any, limit: int | None
) -> Iterator[Any]:
    """Yield the remaining batches of the epoch, then evaluate, report and save."""
    try:
        yield from _batches(run, data, batch_size, eval_data, limit)
    except BaseException as error:
        hide_own_frames(error)
        raise


def _batches(run: Run, data: Any, batch_size: int | None, eval_data: Any, limit: int | None) -> Iterator[Any]:
    session, step, request = run.session, run.session.train_step, run.stop_request
    loader = run.loaders.for_training(data, batch_size, epoch=session.epochs)
    if _is_stopped(run):
        return
    if step.is_between_updates:
        run.exit_if_asked()
    _check_not_complete(run)
    limit = run.progress.limit if limit is None else limit
    check_limit(session, limit)
    session.start.limit = limit
    run.refuse_earlier_run()
    run.start()
    if session.position.open_row is None:
        if loader is run.progress.cut_loader:
            raise TrainError(
                "the training data is an iterator, whose last epoch was ended by limit=, and an iterator has "
                "only one epoch. Pass something that can be iterated again, such as a list."
            )
        begin_epoch(run, loader)
        steps = step.steps
        batches, failed = run.cursor.batches(loader), False
        while limit is None or session.position.epoch_step < limit:
            try:
                batch = next(batches)
            except StopIteration:
                break
            except Exception:
                # A signal to every process of a job also ends the workers of a loader.
                if not request:
                    raise
                failed = True
            if failed:
                run.save_and_exit()
            if not run.progress.is_checked or run.is_pending:
                begin_run(run, batch, eval_data)
            since_s = session.epoch_start_s
            try:
                yield batch
            except GeneratorExit:
                # The loop was left. If that is noticed late, another one may have begun.
                if session.epoch_start_s != since_s:
                    raise
                if not _is_done(run, batches, limit):
                    session.pause_epoch()
                    raise
                # The last batch is done: `zip` does not ask for more once another iterator has ended.
                if limit is not None and session.position.epoch_step >= limit:
                    _cut_epoch(run, loader, batches)
                break
            if (request.signal or session.stop_reason) and step.is_between_updates:
                if request.signal:
                    run.save_and_exit()
                return
        else:
            _cut_epoch(run, loader, batches)
        if session.position.epoch_step == 0 and step.steps == steps:
            raise TrainError(
                "an epoch ended, but none of its batches was passed to trainer.step: nothing was trained. "
                "Write `for batch in trainer.epoch(…): trainer.step(batch)`."
            )
        end_training(run)
    elif session.epoch_start_s is None:
        session.epoch_start_s = time.perf_counter()
    if run.is_pending and eval_data is not None:
        run.loaders.evaluation_loader(eval_data)  # for the record
    run.begin()
    end_epoch(run, eval_data)


def _is_done(run: Run, batches: Iterator[Any], limit: int | None) -> bool:
    """Return whether an epoch whose loop was left has trained on all of its batches without an error."""
    session, step, count = run.session, run.session.position.epoch_step, run.progress.num_batches
    is_trained = step > 0 and step == run.progress.followed_step and session.train_step.steps > 0
    if not is_trained or run.stop_request or session.stop_reason or sys.is_finalizing():
        return False
    if limit is not None and step >= limit:
        return True
    return count is not None and step >= count and next(batches, None) is None


def begin_run(run: Run, batch: Any, eval_data: Any) -> None:
    """Check the run and record its start, once, before its first batch is trained on."""
    started_s, session = time.perf_counter(), run.session
    if not run.progress.is_checked:
        run.progress.is_checked = True
        _check_first(run, batch, eval_data)
    run.begin()
    # The duration of the epoch is that of its training.
    assert session.epoch_start_s is not None
    session.epoch_start_s += time.perf_counter() - started_s


def _check_first(run: Run, batch: Any, eval_data: Any) -> None:
    """Run the dry pass, unless it is turned off."""
    if not run.session.settings.dry_pass:
        if eval_data is not None:
            run.loaders.for_evaluation(eval_data)  # for the record
        return
    try:
        dry_pass(run, batch, eval_data)
    except Exception:
        # A signal to every process of a job also ends the workers of a loader.
        if not run.stop_request:
            raise


def _cut_epoch(run: Run, loader: Loader, batches: Iterator[Any]) -> None:
    """End an epoch at its limit: the next one starts with the order of its own."""
    cast(Generator[Any], batches).close()
    run.cursor.forget()
    if loader.is_one_shot:
        run.progress.cut_loader = loader
    else:
        loader.set_epoch(loader.epoch + 1)


def _is_stopped(run: Run) -> bool:
    """Return whether the run was stopped; raise if epochs are requested again and again anyway."""
    reason = run.session.stop_reason
    if not reason:
        return False
    run.progress.num_empty_epochs += 1
    if run.progress.num_empty_epochs >= MAX_EMPTY_EPOCHS:
        raise TrainError(
            f"the run was stopped ({reason}), and epoch() was called {run.progress.num_empty_epochs} times "
            "since, each time without a batch. Write `while trainer.epochs < n and not "
            "trainer.stop_reason:`; fit and running start again."
        )
    return True


def _check_not_complete(run: Run) -> None:
    """Raise if an open run has all of its epochs already: the next one would not be part of it."""
    total, done = run.progress.total_epochs, run.session.epochs
    if run.stage is not Stage.CLOSED and total is not None and done >= total:
        raise TrainError(
            f"running({total}) was opened for {counted(total, 'epoch')}, and this run has completed {done}. "
            f"Write `while trainer.epochs < {total} and not trainer.stop_reason:`, or running({done + 1})."
        )


def begin_epoch(run: Run, loader: Loader) -> None:
    """Prepare for the batches of an epoch, or for the rest of them.

    A run without progress starts at the beginning of the loader, even if a batch was read before.
    """
    session, start = run.session, run.session.start
    if start.is_fresh:
        start.is_fresh, start.modes = False, modes_of(session.model)
        reset_schedule(session.train_step.schedule)
        start.optimizer = optimizer_settings(session.optimizer)
        if session.position.epoch_step == 0:
            loader.rewind()
        enter_training(session.model)
        start_run(session.model)
    session.leave_out_steps_outside()
    run.cursor.rewind(loader)
    count, limit = num_batches(loader), session.start.limit
    run.progress.num_batches = count if count is None or limit is None else min(count, limit)
    if run.stop_request and session.train_step.is_between_updates:
        run.save_and_exit()
    if not session.model.training:
        enter_training(session.model)
    if not run.progress.is_checked:
        run.watch_unsaved(loader)
    run.progress.sums_before = []
    if loader.position and session.train_step.is_between_updates:
        run.progress.sums_before = session.train_step.state_dict()["means"]
    if loader.position == 0:
        _report_second_end(run)
        _report_mixed_epoch(run, loader)
        session.position.epoch_step, session.position.spent_s = 0, 0.0
        _report_other_size(run, loader, count)
        # The data begins again; within an epoch, a resumed run continues the state that was saved.
        reset_carried_values(session.model)
        run.hooks.call("on_epoch_start", epoch=session.epochs)
    session.check_parameters()
    session.epoch_start_s = time.perf_counter()


def _report_second_end(run: Run) -> None:
    """Report that the program ends the epochs of the graph too: they are counted twice."""
    model, ended = run.session.model, run.progress.graph_epochs
    if ended is None or not isinstance(model, Graph) or model.epoch_count == ended:
        return
    if "end_epoch" not in run.reported:
        run.reported.add("end_epoch")
        run.reports.warn(f"{SECOND_END} The trends have empty epochs, which changes their slopes.")


def _report_mixed_epoch(run: Run, loader: Loader) -> None:
    """Report that an epoch which was left early begins again with other data: its means contain both."""
    session, before = run.session, run.last_epoch
    if before is None or before[0]() is loader or before[2] != session.epochs:
        return
    if session.position.epoch_step and "epoch" not in run.reported:
        run.reported.add("epoch")
        run.reports.warn(
            f"epoch {session.epochs + 1} was left after {counted(session.position.epoch_step, 'batch')} "
            "and begins again with different data: its loss is the mean over both. Read each epoch to its "
            "end, or end it after a number of batches with trainer.epoch(data, limit=…)."
        )


def _report_other_size(run: Run, loader: Loader, count: int | None) -> None:
    """Report that a trainer continues with data of a different size, which a schedule does not know."""
    session, before = run.session, run.last_epoch
    run.last_epoch = ref(loader), count, session.epochs
    if before is None or not session.updates or before[0]() is loader or before[1] == count:
        return
    report = run.reports.note if session.schedule is None else run.reports.warn
    text = _other_length(session, count, before[1])
    report(f"this trainer {text}. Create a new Trainer to start over.")


def other_length(run: Run, loader: Loader) -> str:
    """Return a message if a new stage has epochs of a different length, otherwise "".

    With a schedule, which does not know the new length, the first epoch reports it as a warning.
    """
    session, before, count = run.session, run.last_epoch, num_batches(loader)
    if before is None or before[1] == count or session.schedule is not None or before[2] == session.epochs:
        return ""  # in the last case, an epoch that was left early begins again
    run.last_epoch = ref(loader), count, session.epochs
    return _other_length(session, count, before[1])


def _other_length(session: Session, count: int | None, before: int | None) -> str:
    continues = "the optimizer continues"
    if session.schedule is not None:
        continues = "the optimizer and the schedule, which counts updates, continue"
    return (
        f"continues at epoch {session.epochs + 1}, after {counted(session.updates, 'update')}, with epochs "
        f"of a different length: {count} batches instead of {before}, and {continues} from there"
    )


def end_training(run: Run) -> None:
    """Apply an incomplete accumulation window, and take the means of the epoch."""
    run.session.check_parameters()
    # An interrupt in between would leave no trace that the epoch was trained.
    with uninterrupted():
        updated = _take_means(run)
    if updated:
        run.call_step_hooks()
    if run.saver is not None:
        run.saver.save_postponed()


def _take_means(run: Run) -> bool:
    """Open the row of the epoch, and return whether a window that was not full was applied."""
    session, step = run.session, run.session.train_step
    step.flush()
    updated = run.after_update()
    if updated:
        run.report_update()
    run.nonfinite.settle()
    means = epoch_means(run)
    if undecided := run.progress.undecided:
        run.report_values(BatchValues(counts_in(means, undecided)))
    check_names([name for name in means if name != "loss"])
    for name, value in step.values.items():
        check_number(name, value)
    step.reset_means()
    row = {"epoch": session.epochs + 1, **means, **named_rate(session.optimizer)}
    if session.settings.nan == "skip":
        row[SKIPPED] = num_skipped_in_epoch(session)
    session.position.open_row = row
    if "lr" in row:
        _warn_of_function(run, row["lr"])
    return updated


def _warn_of_function(run: Run, rate: float) -> None:
    """Warn if a schedule that is a function has decayed in this epoch."""
    session = run.session
    rates = [*(earlier["lr"] for earlier in session.history if "lr" in earlier), rate]
    warning = function_has_decayed(
        session.schedule,
        initial=float(session.optimizer.defaults.get("lr") or 0.0),
        rates=rates,
        updates=session.updates,
        epochs=run.progress.total_epochs or 0,
    )
    if warning:
        run.reports.warn(warning)


def end_epoch(run: Run, eval_data: Any) -> None:
    """Evaluate, add a row to the history, report and save."""
    session, epoch = run.session, run.session.epochs
    position, schedule = session.position, session.train_step.schedule
    assert position.open_row is not None
    opened = position.open_row
    row = {**opened, **_evaluate(run, eval_data, epoch)}
    if schedule is not None and run.follows_loss:
        _observe_loss(run, schedule, row)
        row |= named_rate(session.optimizer)
    position.open_row, position.measured_at = None, session.updates
    session.history.append(row)
    run.has_trained = True
    metrics = {name: value for name, value in row.items() if name != "epoch"}
    if isinstance(session.model, Graph):
        record_epoch(session.model, metrics)
        run.progress.graph_epochs = session.model.epoch_count
    with after_epoch(session.model, metrics):
        run.hooks.call("on_epoch_end", epoch=epoch, metrics=metrics)
    rate = learning_rate(session.optimizer)
    _take_from_hooks(row, metrics, rate=rate)
    if rate is not None and rate != row["lr"]:
        # A hook changed it; a row contains the rate of the next update.
        row["lr"] = metrics["lr"] = rate
    if "nan values" not in run.reported and (warning := nan_values(opened, run.progress.nan_ranks)):
        run.reported.add("nan values")
        run.reports.warn(warning)
    if "nan evaluation" not in run.reported and (warning := nan_evaluation(row)):
        run.reported.add("nan evaluation")
        run.reports.warn(warning)
    if session.epochs == run.progress.total_epochs:
        for warning in never_measured(run.watched, session.history, run.hooks.all):
            run.reports.warn(warning)
    if run.reports.current is not None:
        run.reports.current.show_notes(session.train_step)
        tables = run.progress.tables
        hidden = components_of(tables)
        shown = {name: value for name, value in metrics.items() if name not in hidden}
        tables = with_modes(tables, run.evaluator.modes)
        run.reports.current.epoch(epoch, shown, session.epoch_s, tables, earlier_s=position.spent_s)
    position.spent_s = 0.0
    if alert := skipped_alert(session, row.get(SKIPPED, 0)):
        run.reports.event("alert", message=f"epoch {row['epoch']}: {alert[0]}", level=alert[1])
    every = session.settings.save_every
    if run.saver is not None and every is not None and session.epochs % every == 0:
        run.saver.save(wait=False, reason=f"epoch {session.epochs}")
    if run.collector is not None:
        run.collector.collect()


def _observe_loss(run: Run, schedule: ScheduleBridge, row: Mapping[str, Any]) -> None:
    """Pass the loss of an epoch to a schedule that follows it, and never compare it with another metric."""
    followed = followed_loss(row, run.session.history, evaluates=run.always_evaluates)
    if followed.change and followed.name not in run.reported:
        run.reported.add(followed.name)
        run.reports.warn(followed.change)
    if followed.name:
        if followed.change:
            forget_best(schedule)
        schedule.observe(row[followed.name])


def _take_from_hooks(row: dict[str, Any], metrics: dict[str, Any], *, rate: float | None) -> None:
    """Take what hooks added to the metrics, changed and removed into the row of the epoch, as plain numbers.

    `rate` is the learning rate after the hooks, None if the optimizer has none.
    """
    if "epoch" in metrics:
        raise TrainError("a hook adds the metric 'epoch', which is reserved for the history. Rename it.")
    for name in [name for name in row if name != "epoch" and name not in metrics]:
        if name in ("loss", "lr", SKIPPED):
            raise TrainError(
                f"a hook removes the metric {name!r}, which every epoch has. Leave it in metrics."
            )
        del row[name]
    if metrics.get("lr") not in (row.get("lr"), rate):
        raise TrainError(
            f"a hook sets metrics['lr'] to {metrics['lr']!r:.80}, which does not change the learning rate. "
            "Call trainer.scale_lr(factor), or set the rate of each group in trainer.optimizer.param_groups."
        )
    for name, value in metrics.items():
        if name != "lr" and (name not in row or row[name] is not value):
            row[name] = metrics[name] = as_number(name, value)


def _evaluate(run: Run, eval_data: Any, epoch: int) -> dict[str, float]:
    """Return the metrics that the evaluation adds to the row of an epoch."""

    def check_for_stop() -> None:
        if run.stop_request:
            raise _Interrupted

    run.progress.tables = {}
    if eval_data is None:
        return {}
    read, metrics = run.loaders.evaluation_batches(eval_data), None
    limit = run.session.start.limit
    try:
        with hint_at_batches(eval_data):
            metrics = run.evaluator(lambda: islice(read(), limit), before_batch=check_for_stop)
    except Exception:
        # A signal to every process of a job also ends the workers of a loader.
        if not run.stop_request:
            raise
    if metrics is None:
        run.save_and_exit()
    run.progress.tables = {f"eval_{name}": table for name, table in run.evaluator.tables.items()}
    run.hooks.call("on_evaluate_end", epoch=epoch, metrics=metrics)
    return with_prefix(metrics)
