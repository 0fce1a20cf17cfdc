"""Evaluation data whose inputs do not look like those of the training."""

from __future__ import annotations

import json
from typing import Any
from weakref import ref

from ..run import Run
from .augmentations import TrainingInputs, as_recorded, unlike_training


def compare_inputs(run: Run, batch: Any, *, call: str) -> None:
    """Warn once if the first batch of an evaluation is normalized unlike the training data.

    Each loader is compared once. `call` is how to pass a loader for the evaluation.
    """
    progress, loader = run.progress, run.loaders.evaluation
    if loader is None or (progress.compared is not None and progress.compared() is loader):
        return
    progress.compared = ref(loader)
    trained = _recorded(run) if progress.inputs is None else progress.inputs
    for warning in unlike_training(trained, loader, batch, call=call):
        if warning not in run.reported:
            run.reported.add(warning)
            run.reports.warn(warning)


def _recorded(run: Run) -> TrainingInputs | None:
    """Return the normalization in the record of a run whose weights were loaded from its folder."""
    session, directory = run.session, run.directory
    if directory is None or not (session.updates or session.start.restored_step is not None):
        return None
    try:
        record = json.loads(directory.read_config() or b"{}")
        return as_recorded(record["trainer"]["data"]["augment"])
    except (ValueError, TypeError, KeyError):  # an older record, or a damaged one
        return None
