"""Load the weights of the best save of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flodl.checkpoint import (
    Bundle,
    check_loadable,
    damaged_bundles,
    list_bundles,
    newest_folder,
    read_bundle,
)
from flodl.checkpoint.bundles.listing import choose_best, how_to_keep_best
from flodl.checkpoint.bundles.measured import measured_alike
from flodl.core import CheckpointError, TrainError
from flodl.core.best_values import best_position, improves
from flodl.core.metric_modes import Mode, mode_of_metric

from .callbacks.standard import MetricWatcher
from .run import Run
from .saving.buffers import restore_buffers
from .saving.missing_run import why_no_run

_USUAL = "eval_loss"


def restore_best(run: Run, metric: str | None, mode: Mode | None) -> Bundle:
    """Load the best kept weights into the model, and return their bundle."""
    if mode not in (None, "min", "max"):
        raise TrainError(f"restore_best: mode={mode!r}. Use 'min' or 'max'.")
    directory = run.directory
    if directory is None:
        raise TrainError(
            "restore_best: nothing was saved. Write Trainer(…, checkpoint_dir=…, keep=best('eval_loss'))."
        )
    directory.wait()
    name, own_mode = _watched(run, metric)
    mode = mode or own_mode or run.evaluator.modes.get(name) or mode_of_metric(name)
    if newest_folder(directory.bundles) is None:
        raise TrainError(_nothing_saved(run, directory.path))
    try:
        # A new process does not know the history of the run, which is then read from its saves.
        is_known = bool(run.session.history)
        bundle = choose_best(directory.bundles, name, mode=mode, reports_better=not is_known)
    except CheckpointError as error:
        raise TrainError(f"restore_best: {error}") from error
    lacks_average = _load(run, bundle, is_average="ema_" in name)
    if better := _better(run.session.history, name, mode, bundle):
        every = run.session.settings.save_every
        advice = how_to_keep_best(name, keep=str(directory.keep), save_every=every)
        run.reports.warn(
            f"restore_best: epoch {better['epoch']} has a better {name!r} ({better[name]:g}) than the best "
            f"save ({bundle.metrics[name]:g}), but its save was not kept. {advice}"
        )
    run.recorder.expect_weights(run.session)
    if run.session.start.is_fresh:
        run.session.start.restored_step = bundle.step
    message = f"restored the weights of step {bundle.step}, with {name} {bundle.metrics[name]:g}"
    if lacks_average:
        run.reports.note(f"{message}; the save has no average (ema), which starts again from these weights")
    else:
        run.reports.event("alert", message=message, level="info")
    return bundle


def _nothing_saved(run: Run, folder: Path) -> str:
    if run.session.updates:
        return (
            f"restore_best: {str(folder)!r} has no saves yet. Save one with trainer.save(), or let fit end."
        )
    return (
        f"restore_best: checkpoint_dir {str(folder)!r} {why_no_run(folder)} Pass the folder of a run, or "
        "train first."
    )


def _watched(run: Run, metric: str | None) -> tuple[str, Mode | None]:
    """Return the metric and its direction: as given, or those of `keep` or a hook, or the usual ones."""
    assert run.directory is not None
    keep = run.directory.keep
    known: list[tuple[str, Mode | None]] = [*zip(keep.metrics, keep.modes)]
    known += [(hook.metric, hook.mode) for hook in run.hooks.all if isinstance(hook, MetricWatcher)]
    if metric is not None:
        return metric, dict(reversed(known)).get(metric)
    names = dict.fromkeys(name for name, _ in known) or {_USUAL: None}
    if len(names) > 1:
        told = ", ".join(map(repr, names))
        raise TrainError(
            f"restore_best: this run watches {told}. Name one: restore_best({next(iter(names))!r})."
        )
    name = next(iter(names))
    return name, dict(reversed(known)).get(name)


def _load(run: Run, bundle: Bundle, *, is_average: bool) -> bool:
    """Load the weights that a metric was measured with, those of the model or their average, and the average.

    Return whether the trainer has an average and the bundle has none.
    """
    model, average = run.session.model, run.session.average
    parts = read_bundle(bundle, parts=[one for one in ("model", "average", "buffers") if one in bundle.parts])
    averages = parts.get("average")
    saved: Mapping[str, Any] = averages if is_average and averages else parts["model"]
    wanted = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    if missing := [name for name in wanted if name not in saved]:
        raise TrainError(f"restore_best: the save has no {missing[0]!r}. It belongs to a different model.")
    check_loadable(saved, wanted, f"the save at step {bundle.step}")
    with torch.no_grad():
        model.load_state_dict(dict(saved))
    restore_buffers(model, parts.get("buffers") or {}, run.session.device)
    if average is None:
        return False
    average.load_state_dict(averages or dict(model.named_parameters()))
    return not averages


def _better(
    history: Sequence[Mapping[str, Any]], name: str, mode: Mode, bundle: Bundle
) -> Mapping[str, Any] | None:
    """Return the epoch of the history that is better than a bundle, if any."""
    folder = bundle.path.parent
    if damaged_bundles(folder):
        return None  # its save may be one of these, which are reported
    saves = list_bundles(folder)
    if len(measured_alike(saves, name)) < len(saves):
        return None  # the history does not record which data a value was measured on
    rows = [row for row in history if isinstance(row.get(name), int | float)]
    position = best_position((row[name] for row in rows), mode)
    if position is None:
        return None
    top = rows[position]
    return top if improves(top[name], bundle.metrics[name], mode) else None
