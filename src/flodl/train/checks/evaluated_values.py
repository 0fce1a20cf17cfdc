"""An evaluation that no training has checked: its named values may depend on the batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

from flodl.monitor import Monitor

from ..batches.samples import Batches
from ..evaluation.batch_values import judge_values
from ..run import Run

_CHECKED = "evaluated values"


def evaluate_once(run: Run, read: Callable[[], Batches]) -> dict[str, float]:
    """Evaluate, and report values that depend on the batch size unless a training has checked them."""
    if run.progress.is_checked or not run.session.settings.dry_pass or _CHECKED in run.reported:
        return run.evaluator(read)
    run.reported.add(_CHECKED)
    first: list[Any] = []

    def read_and_keep() -> Iterator[tuple[Any, int | None]]:
        for batch, samples in read():
            if not first:
                first.append(batch)
            yield batch, samples

    values = run.evaluator(read_and_keep)
    if first and len(values) > 1:
        monitor = run.reports.monitor
        with monitor.muted() if isinstance(monitor, Monitor) else nullcontext():
            judged = judge_values(run.session.train_step, run.evaluator, first[0])
        run.report_values(judged)
    return values
