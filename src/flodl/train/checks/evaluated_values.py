"""An evaluation that no training has checked: its named values may depend on the batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

from flodl.monitor import Monitor

from ..batches.samples import Batches
from ..evaluation.batch_values import judge_values
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
                if not is_judged and not first:
                    first.append(batch)
            yield batch, samples

    values = run.evaluator(read_and_look)
    if first and len(values) > 1:
        monitor = run.reports.monitor
        with monitor.muted() if isinstance(monitor, Monitor) else nullcontext():
            judged = judge_values(run.session.train_step, run.evaluator, first[0])
        run.report_values(judged)
    return values


def _warn_of_random_changes(run: Run) -> None:
    for warning in random_changes(run.loaders.evaluation):
        if warning not in run.reported:
            run.reported.add(warning)
            run.reports.warn(warning)
