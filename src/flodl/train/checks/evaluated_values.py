"""An evaluation that no training has checked: its named values may depend on the batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

from flodl.core import log
from flodl.engine import sandbox, shapes_in
from flodl.monitor import Monitor

from ..batches.samples import Batches
from ..evaluation.batch_values import judge_values
from ..evaluation.broadcasts import broadcast_metrics
from ..evaluation.evaluator import as_arguments
from ..run import Run
from .augmentations import random_changes
from .evaluated_inputs import compare_inputs

_CHECKED = "evaluated values"


def evaluate_once(run: Run, read: Callable[[], Batches]) -> dict[str, float]:
    """Evaluate, and compare the inputs with those of the training.

    Values that depend on the batch size are reported unless a training has checked them.
    """
    if not run.session.settings.dry_pass:
        return run.evaluator(read)
    is_judged = run.progress.is_checked or _CHECKED in run.reported
    run.reported.add(_CHECKED)
    first: list[Any] = []

    def read_and_look() -> Iterator[tuple[Any, int | None]]:
        for number, (batch, samples) in enumerate(read()):
            if number == 0:
                _warn_of_random_changes(run)
                compare_inputs(run, batch, call="trainer.evaluate({})")
                first[:] = first or [batch]
            yield batch, samples

    values = run.evaluator(read_and_look)
    judges = bool(values) and not is_judged
    if not first:
        return values
    monitor = run.reports.monitor
    with monitor.muted() if isinstance(monitor, Monitor) else nullcontext():
        judged = judge_values(run.session.train_step, run.evaluator, first[0]) if judges else None
        warnings = _broadcasts(run, first[0])
    if judged is not None:
        run.report_values(judged)
    for warning in warnings:
        if warning not in run.reported:
            run.reported.add(warning)
            run.reports.warn(warning)
    return values


def _broadcasts(run: Run, batch: Any) -> list[str]:
    """Return warnings about [n, 1] combined with [n] in the step function or in a metric, for one batch."""
    shapes = f"evaluated shapes {[shape[1:] for shape in shapes_in(as_arguments(batch))]}"
    if shapes in run.reported:
        return []
    run.reported.add(shapes)
    evaluator, found, warnings = run.evaluator, list[str](), list[str]()
    metrics = [*evaluator.metrics.values()]
    states = [vars(metric) for metric in metrics if hasattr(metric, "__dict__")]

    def compare(predictions: Any, targets: Any) -> None:
        warnings.extend(broadcast_metrics(evaluator.metrics, predictions, targets))

    try:
        with sandbox(run.session.train_step, batch, evaluator.outputs, *metrics, *states):
            evaluator.names_of(
                batch, None, on_outputs=compare, on_broadcasts=found.extend, on_warning=warnings.append
            )
    except Exception as error:
        log.debug("the shapes of an evaluation are not checked: %s: %s", type(error).__name__, error)
        return []
    return [*(f"{one}." for one in found), *warnings]


def _warn_of_random_changes(run: Run) -> None:
    for warning in random_changes(run.loaders.evaluation):
        if warning not in run.reported:
            run.reported.add(warning)
            run.reports.warn(warning)
