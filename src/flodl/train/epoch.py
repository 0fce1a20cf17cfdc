"""What begins and ends an epoch; the ending can be interrupted, and is begun again after a resume."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flodl.core import TrainError
from flodl.core.interrupts import uninterrupted
from flodl.data import Loader
from flodl.graph import Graph

from .batches.loaders import num_batches
from .evaluation.evaluator import check_names, check_number
from .evaluation.modes import modes_of
from .learning_rate import begin_anew, learning_rate, optimizer_settings

if TYPE_CHECKING:
    from .run import Run


EMPTY_EPOCHS_AT_MOST = 1000


class _Interrupted(Exception):
    """Evaluation is left because somebody asked the run to stop."""


def is_stopped(run: Run) -> bool:
    """Say whether the run was stopped and gives no batch; who asks for ever is told what to ask."""
    if not run.stop_reason:
        return False
    run.num_empty_epochs += 1
    if run.num_empty_epochs >= EMPTY_EPOCHS_AT_MOST:
        raise TrainError(
            f"the run was stopped ({run.stop_reason}), and epoch() was called {run.num_empty_epochs} times "
            "since, each time without a batch. Write `while trainer.epochs < n and not "
            "trainer.stop_reason:`; fit and running begin again."
        )
    return True


def begin_epoch(run: Run, loader: Loader) -> None:
    """Get ready for the batches of an epoch, or for the rest of them.

    A run that has nothing behind it begins at the loader's beginning, whoever looked at a batch before.
    """
    if run.is_fresh:
        run.is_fresh, run.modes_at_start = False, modes_of(run.model)
        begin_anew(run.train_step.schedule)
        run.optimizer_at_start = optimizer_settings(run.optimizer)
        if run.place.epoch_step == 0:
            loader.rewind()
    run.handing.go_back(loader)
    run.num_batches = num_batches(loader)
    if run.notice and run.train_step.is_between_updates:
        run.save_and_leave()
    if not run.model.training:
        run.model.train()
    if loader.position == 0:
        run.place.epoch_step = 0
        run.hooks.call("on_epoch_start", epoch=run.epochs)
    run.epoch_began_s = time.perf_counter()


def close_training(run: Run) -> None:
    """Apply what is left of a window, and take the means of the epoch's training."""
    # Half-way, nobody could tell that the epoch was trained.
    with uninterrupted():
        _take_means(run)
    run.save_put_off()


def _take_means(run: Run) -> None:
    step = run.train_step
    step.flush()
    run.meet_update()
    run.settle()
    means = {name: value.item() for name, value in step.means().items()}
    check_names([name for name in means if name != "loss"])
    for name, value in step.values.items():
        check_number(name, value)
    step.reset_means()
    run.place.open_row = {"epoch": run.epochs + 1, **means, "lr": learning_rate(run.optimizer)}


def finish_epoch(run: Run, eval_data: Any) -> None:
    """Evaluate, note, tell and save."""
    place, epoch = run.place, run.epochs
    assert place.open_row is not None
    row = {**place.open_row, **_evaluated(run, eval_data, epoch)}
    bridge = run.train_step.schedule
    if run.follows_loss and bridge is not None:
        bridge.observe(row.get("eval_loss", row["loss"]))
        row["lr"] = learning_rate(run.optimizer)
    place.open_row, place.measured_at = None, run.updates
    run.history.append(row)
    metrics = {name: value for name, value in row.items() if name != "epoch"}
    _record(run.model, metrics)
    run.hooks.call("on_epoch_end", epoch=epoch, metrics=metrics)
    if (rate := learning_rate(run.optimizer)) != row["lr"]:
        # A hook has changed it; a row has the rate of the next update.
        row["lr"] = metrics["lr"] = rate
    if run.telling is not None:
        run.telling.epoch(epoch, metrics, time.perf_counter() - run.epoch_began_s)
    every = run.settings.save_every
    if run.directory is not None and every is not None and run.epochs % every == 0:
        run.save(wait=False, reason=f"epoch {run.epochs}")
    if run.collector is not None:
        run.collector.collect()


def _evaluated(run: Run, eval_data: Any, epoch: int) -> dict[str, float]:
    """Give what the evaluation of an epoch adds to its row."""

    def leave_if_asked() -> None:
        if run.notice:
            raise _Interrupted

    if eval_data is None:
        return {}
    loader = run.feeding.for_evaluation(eval_data, None)
    found = None
    try:
        found = run.evaluator(loader, between=leave_if_asked)
    except Exception:
        # Also where a signal to every process of a job has ended the workers of the loader.
        if not run.notice:
            raise
    if found is None:
        run.save_and_leave()
    run.hooks.call("on_evaluate_end", epoch=epoch, metrics=found)
    return {f"eval_{name}": value for name, value in found.items()}


def _record(model: Any, metrics: Mapping[str, float]) -> None:
    """Let a graph keep the metrics too, so that its trends and exports have them."""
    if isinstance(model, Graph):
        for name, value in metrics.items():
            model.record(name, value)
        model.end_epoch()
