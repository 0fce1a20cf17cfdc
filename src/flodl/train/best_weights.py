"""Load the weights of the best save of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from flodl.checkpoint.bundles.measured import measured_alike, values_alike
from flodl.core import CheckpointError, TrainError
from flodl.core.best_values import best_position, improves
from flodl.core.formats import counted
from flodl.core.metric_modes import Mode, mode_of_metric
from flodl.monitor.run_settings.step_function import known_objects, read_in

from .callbacks.standard import MetricWatcher
from .run import Run
from .saving.buffers import restore_buffers
from .saving.bundle import load_outside
from .saving.changes.restored_model import different_model
from .saving.check import outside_model
from .saving.run_folder.missing_run import why_no_run

_USUAL = "eval_loss"
_PARTS = ("model", "average", "buffers", "outside")


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
    loaded = _load(run, bundle, is_average="ema_" in name)
    if better := _better(run.session.history, run.session.start.evaluated_since, name, mode, bundle):
        every = run.session.settings.save_every
        advice = how_to_keep_best(name, keep=str(directory.keep), save_every=every)
        run.reports.warn(
            f"restore_best: epoch {better['epoch']} has a better {name!r} ({better[name]:g}) than the best "
            f"save ({bundle.metrics[name]:g}), but its save was not kept. {advice}"
        )
    if loaded.difference:
        run.reports.warn(
            f"restore_best: the model is not the one that was saved: {loaded.difference}. Its weights were "
            f"loaded anyway, so it may not reproduce {name} {bundle.metrics[name]:g}. Build it as it "
            "was saved."
        )
    run.recorder.expect_weights(run.session)
    if run.session.start.is_fresh:
        run.session.start.restored_step = bundle.step
    measured = f"{name} {bundle.metrics[name]:g}"
    message = f"restored the weights of step {bundle.step}, with {measured}"
    no_average = "the save has no average (ema), which starts again from these weights"
    if loaded.num_left_out:
        more = f" Also, {no_average}." if loaded.lacks_average else ""
        run.reports.warn(_left_out(bundle.step, measured, loaded.num_left_out) + more)
    elif loaded.lacks_average:
        run.reports.note(f"{message}; {no_average}")
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


@dataclass(frozen=True)
class _Loaded:
    """What a load could not restore.

    `lacks_average` is whether the trainer has an average and the bundle has none, `num_left_out` the number
    of saved parameters outside the model that the optimizer of this trainer does not have, `difference` what
    the model of a new program has that was saved differently.
    """

    lacks_average: bool
    num_left_out: int
    difference: str


def _load(run: Run, bundle: Bundle, *, is_average: bool) -> _Loaded:
    """Load the weights that a metric was measured with, those of the model or their average, and the average.

    Parameters of the optimizer that are not in the model are loaded too, if this optimizer has all of them.
    """
    model, average = run.session.model, run.session.average
    parts = read_bundle(bundle, parts=[one for one in _PARTS if one in bundle.parts])
    averages = parts.get("average")
    saved: Mapping[str, Any] = averages if is_average and averages else parts["model"]
    wanted = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    if missing := [name for name in wanted if name not in saved]:
        raise TrainError(f"restore_best: the save has no {missing[0]!r}. It belongs to a different model.")
    where = f"the save at step {bundle.step}"
    check_loadable(saved, wanted, where)
    # Older bundles lack these.
    outside: Mapping[str, Tensor] = parts.get("outside") or {}
    has_outside = _are_same(outside, own := outside_model(run.session))
    if has_outside:
        check_loadable(outside, {name: own[name] for name in outside}, where)
    with torch.no_grad():
        model.load_state_dict(dict(saved))
    restore_buffers(model, parts.get("buffers") or {}, run.session.device)
    if has_outside:
        load_outside(run.session, outside)
    if average is not None:
        average.load_state_dict(averages or dict(model.named_parameters()))
    return _Loaded(
        lacks_average=average is not None and not averages,
        num_left_out=0 if has_outside else len(outside),
        difference=_difference(run, bundle) if run.session.start.is_fresh else "",
    )


def _difference(run: Run, bundle: Bundle) -> str:
    """Return how the model of a program that has not trained differs from the saved model, or ""."""
    parts = read_bundle(bundle, parts=[one for one in ("config", "trainer") if one in bundle.parts])
    session = run.session
    return different_model(
        session.model,
        parts.get("config") or {},
        parts.get("trainer") or {},
        known=known_objects(session.model, session.optimizer),
        names=read_in(run.evaluator.step_fn),
    )


def _are_same(saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> bool:
    """Return whether every saved parameter has its place, with its shape.

    >>> saved = {"0.2": torch.ones(3)}
    >>> [_are_same(saved, own) for own in (saved, {"0.2": torch.ones(4)}, {})]
    [True, False, False]
    """
    return all(name in own and own[name].shape == value.shape for name, value in saved.items())


def _left_out(step: int, measured: str, count: int) -> str:
    """Describe weights that were restored without the parameters outside the model.

    >>> _left_out(4, "eval_loss 0.5", 1).partition(": ")[2].partition(". ")[0]
    'the run has also trained 1 parameter outside the model, which this optimizer does not have'
    """
    return (
        f"restore_best: the run has also trained {counted(count, 'parameter')} outside the model, which this "
        f"optimizer does not have. Only the model was restored, from step {step}, so it does not reproduce "
        f"{measured}. Build the optimizer with the original parameters, in the original order. Layers in a "
        "plain list are outside the model: use nn.ModuleList."
    )


def _better(
    history: Sequence[Mapping[str, Any]], since: int, name: str, mode: Mode, bundle: Bundle
) -> Mapping[str, Any] | None:
    """Return the epoch of the history that is better than a bundle, if any."""
    folder = bundle.path.parent
    if damaged_bundles(folder):
        return None  # its save may be one of these, which are reported
    saves = list_bundles(folder)
    if len(measured_alike(saves, name)) < len(saves):
        return None  # the history does not record which data a value was measured on
    rows = [row for row in values_alike(history, name, since) if isinstance(row.get(name), int | float)]
    position = best_position((row[name] for row in rows), mode)
    if position is None:
        return None
    top = rows[position]
    return top if improves(top[name], bundle.metrics[name], mode) else None
