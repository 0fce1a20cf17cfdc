"""The dry pass: before anything is trained, one batch goes through training, evaluation and saving."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from flodl.core import log
from flodl.core.rng_state import preserve_rng_state
from flodl.engine import (
    NotRestorable,
    carries_state,
    explained,
    rehearse,
    samples_as_time,
    sandbox,
    time_first_calls,
    watch_broadcasts,
    watch_outside,
)
from flodl.graph import recorded
from flodl.monitor import Monitor

from .batches.batch_lists import hint_at_batches
from .batches.loaders import preserve_position
from .callbacks.watched import lacks_evaluation, may_add_metrics, unknown_watched, watched_matrix
from .checks.accumulated_loss import differs_from_large_batch
from .checks.augmentations import random_changes, training_inputs
from .checks.carried_state import unrelated_state
from .checks.evaluated_inputs import compare_inputs
from .checks.gradients import check_gradients
from .evaluation.batch_values import judge_values
from .evaluation.broadcasts import broadcast_metrics
from .evaluation.evaluator import as_arguments
from .evaluation.names import SKIPPED, check_names, check_number
from .evaluation.pieces import compare_pieces
from .learning_rate import named_rate
from .ranks.notes import records_on_ranks
from .run import Run
from .saving.bundle import collect_parts
from .saving.missing_state.plain_state import PlainState


def dry_pass(run: Run, batch: Any, eval_data: Any) -> None:
    """Check the names and shapes of values, evaluation and saving with one batch of each, and undo all of it.

    Only forward passes run, eagerly. What cannot be undone is not run: the first step and the first
    evaluation then find the mistakes.
    """
    session, evaluator = run.session, run.evaluator
    evaluated: tuple[Any, int | None] | None = None
    run.progress.inputs = training_inputs(session.loader, batch)
    if eval_data is not None:
        with preserve_rng_state(session.device), preserve_position(eval_data):
            evaluated = run.loaders.peek_evaluation(eval_data)
        if evaluated is not None:
            for warning in random_changes(run.loaders.evaluation):
                run.reported.add(warning)
                run.reports.warn(warning)
            compare_inputs(run, evaluated[0], call="eval_data={}")
    metrics = [*evaluator.metrics.values()]
    states = [vars(metric) for metric in metrics if hasattr(metric, "__dict__")]
    monitor, stop_reason = run.reports.monitor, session.stop_reason
    muted = monitor.muted() if isinstance(monitor, Monitor) else nullcontext()
    outside = _watch_unsaved(run)
    plain = PlainState(session) if _saves(run) else None
    try:
        with sandbox(session.train_step, batch, evaluated, evaluator.outputs, *metrics, *states), muted:
            names, values, broadcasts = _trained_names(run, batch)
            matrices, warnings = list[str](), list[str]()
            written = {} if outside is None else outside.written()
            drawn = [] if outside is None else outside.drawn()
            if plain is not None and names is not None:
                plain.take(lambda: collect_parts(session, run.cursor, run.hooks))
            judged = judge_values(session.train_step, evaluator, batch, values)
            # A step function that fails on a training batch is reported by the step, with that batch.
            if evaluated is not None and names is not None:
                with hint_at_batches(eval_data):
                    outputs = list[tuple[Any, Any]]()
                    found, matrices = evaluator.names_of(
                        *evaluated,
                        on_outputs=lambda *pair: outputs.append(pair),
                        on_broadcasts=broadcasts.extend,
                        on_warning=warnings.append,
                    )
                    warnings += [
                        one for pair in outputs for one in broadcast_metrics(evaluator.metrics, *pair)
                    ]
                names |= {f"eval_{name}" for name in found}
    except NotRestorable as reason:
        log.debug("the dry pass is left out: %s", reason)
        return
    finally:
        session.stop_reason = stop_reason
    if names is not None:
        _check_watched(run, names, [f"eval_{name}" for name in matrices])
        _report_unsaved(run, batch, written)
        unsaved = () if plain is None else plain.warnings(as_arguments(batch))
        if unrelated := unrelated_state(session, as_arguments(batch)):
            warnings.append(unrelated)
        # The same line may be found for both batches, which may differ in size.
        warnings += [f"{one}." for one in {text.partition(",")[0]: text for text in broadcasts}.values()]
        for warning in (*unsaved, *warnings):
            run.reported.add(warning)
            run.reports.warn(warning)
        _report_accumulation(run, batch)
        run.report_values(judged)
        if drawn:
            run.reports.warn(
                f"the step function draws from {' and '.join(map(repr, drawn))}, a generator of its own, "
                "whose state is in no save: a resumed run would draw other numbers. Draw from random, "
                "numpy.random or torch, whose states are saved, or save it with a hook that has "
                "state_dict and load_state_dict."
            )
    if run.saver is not None and session.train_step.is_between_updates:
        run.saver.check_parts()


def _trained_names(run: Run, batch: Any) -> tuple[set[str] | None, dict[str, Tensor], list[str]]:
    """Return the names that a row of the history has without evaluation, the named values, and broadcasts.

    The names are None if the forward fails.

    The step comes next, and raises the same error, or splits a batch for which memory ran out.
    """
    arguments = as_arguments(batch)
    records, _ = recorded(run.session.model)
    try:
        model = run.session.model
        with time_first_calls(model) as calls, watch_broadcasts(model, arguments) as broadcasts:
            loss, values = rehearse(run.session.train_step, arguments)
    except NotRestorable:
        raise
    except Exception as error:
        log.debug("the dry pass of a training batch: %s: %s", type(error).__name__, error)
        if isinstance(error, torch.OutOfMemoryError) and run.session.device.type == "cuda":
            torch.cuda.empty_cache()
        elif run.session.settings.devices:
            # The step would raise it in other processes.
            better = explained(error, run.evaluator.step_fn, run.session.model, arguments, ())
            if better is not None:
                raise better from error
            raise
        return None, {}, []
    if text := samples_as_time(arguments, calls):
        broadcasts = [*broadcasts, text]
    check_names(values)
    for name, value in values.items():
        check_number(name, value)
    session = run.session
    if warning := check_gradients(session.model, session.optimizer, run.evaluator.step_fn, loss):
        run.reports.warn(warning)
    num_records, metrics = recorded(session.model)
    if session.settings.devices and metrics and num_records != records:
        run.reports.warn(records_on_ranks(metrics))
    skipped = {SKIPPED} if session.settings.nan == "skip" else set()
    # With its history, one value would keep the activations of the model during the evaluation.
    values = {name: value.detach() for name, value in values.items()}
    return {"loss", *named_rate(session.optimizer), *skipped, *values}, values, broadcasts


def _report_accumulation(run: Run, batch: Any) -> None:
    """Note once that a window does not equal one large batch; for `sync`, ranks say that of each batch."""
    session, step_fn = run.session, run.evaluator.step_fn
    step, accumulate = session.train_step, session.train_step.settings.accumulate
    if accumulate == 1 or (session.settings.devices and session.settings.policy == "sync"):
        return
    note = differs_from_large_batch(
        session.model, step_fn, accumulate, lambda: compare_pieces(step, run.evaluator, batch, ["loss"])
    )
    if note:
        run.reports.note(note)


def _saves(run: Run) -> bool:
    settings = run.session.settings
    return run.saver is not None and bool(settings.save_every or settings.save_every_steps)


def _watch_unsaved(run: Run) -> Any:
    """Return the tensors that the step function reaches and no save contains; None if nothing is saved."""
    if not _saves(run):
        return None
    held = [hook for hook in run.hooks.all if hasattr(hook, "state_dict")]
    try:
        return watch_outside(run.session.train_step, saved=held)
    except NotRestorable as reason:
        log.debug("the search for unsaved tensors is left out: %s", reason)
        return None


def _report_unsaved(run: Run, batch: Any, written: Mapping[str, list[Tensor]]) -> None:
    """Warn about tensors that the step function updates and uses, and that no save contains."""
    step, arguments = run.session.train_step, as_arguments(batch)
    try:
        found = [name for name, tensors in written.items() if carries_state(step, arguments, tensors)]
    except Exception as error:
        log.debug("the search for unsaved tensors: %s: %s", type(error).__name__, error)
        return
    if found:
        run.reports.warn(
            f"the step function updates {' and '.join(map(repr, found))}, which belongs to neither the model "
            "nor the optimizer and is in no save: a resumed run would continue with its initial value. Make "
            "it a submodule or buffer of the model, or save it with a hook that has state_dict and "
            "load_state_dict."
        )


def _check_watched(run: Run, names: set[str], matrices: Collection[str]) -> None:
    """Raise if a hook or the policy of the bundles watches a metric that the run does not have."""
    for who, name in run.watched:
        if name in matrices:
            raise watched_matrix(who, name, names)
    loop_decides = run.always_evaluates is None
    if loop_decides:
        # A loop may evaluate some epochs only.
        names = names.union(*run.session.history)
    unknown = [(who, name) for who, name in run.watched if name not in names]
    if not unknown or may_add_metrics(run.hooks.all):
        return
    waiting = [(who, name) for who, name in unknown if loop_decides and lacks_evaluation(name, names)]
    for who, name in waiting:
        run.reports.note(f"{who} watches {name!r}: an epoch counts only if trainer.epoch gets eval_data")
    for who, name in unknown:
        if (who, name) not in waiting:
            raise unknown_watched(who, name, names)
