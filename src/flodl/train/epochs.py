"""What begins and ends an epoch; the ending can be interrupted, and is begun again after a resume."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flodl.core import TrainError
from flodl.data import Loader
from flodl.graph import Graph

from .evaluation import check_names
from .feeding import num_batches
from .rates import learning_rate
from .rollback import meet_not_finite

if TYPE_CHECKING:
    from .trainer import Trainer


class _Interrupted(Exception):
    """Evaluation was left because somebody asked the run to stop."""


def begin_epoch(trainer: Trainer, loader: Loader) -> None:
    """Get ready for the batches of an epoch, or for the rest of them."""
    trainer._num_batches = num_batches(loader)
    if trainer._notice:
        trainer._save_and_leave()
    if not trainer.model.training:
        trainer.model.train()
    if loader.position == 0:
        trainer._place.epoch_step = 0
        trainer._hooks.call("on_epoch_start", trainer=trainer, epoch=trainer.epochs)
    trainer._epoch_began_s = time.perf_counter()


def close_training(trainer: Trainer) -> None:
    """Apply what is left of a window, and take the means of the epoch's training."""
    step = trainer.train_step
    step.flush()
    if step.updates != trainer._updates:
        trainer._after_update()
    if trainer._finite is not None and (skipped := trainer._finite.settle()):
        meet_not_finite(trainer, skipped)
    means = {name: value.item() for name, value in step.means().items()}
    check_names([name for name in means if name != "loss"])
    for name, value in step.values.items():
        if value.numel() != 1:
            raise TrainError(
                f"the step function gives {name!r} of shape {tuple(value.shape)}. "
                "Give one number for each name."
            )
    step.reset_means()
    trainer._place.open_row = {"epoch": trainer.epochs + 1, **means, "lr": learning_rate(trainer.optimizer)}


def finish_epoch(trainer: Trainer, eval_data: Any) -> None:
    """Evaluate, note, tell and save."""
    place, epoch = trainer._place, trainer.epochs
    assert place.open_row is not None
    row = {**place.open_row, **_evaluated(trainer, eval_data, epoch)}
    place.open_row, place.measured_at = None, trainer.updates
    trainer.history.append(row)
    metrics = {name: value for name, value in row.items() if name != "epoch"}
    _record(trainer.model, metrics)
    trainer._hooks.call("on_epoch_end", trainer=trainer, epoch=epoch, metrics=metrics)
    if trainer._telling is not None:
        trainer._telling.epoch(epoch, metrics, time.perf_counter() - trainer._epoch_began_s)
    every = trainer._settings.save_every
    if trainer._directory is not None and every is not None and trainer.epochs % every == 0:
        trainer.save(wait=False, reason=f"epoch {trainer.epochs}")
    if trainer._collector is not None:
        trainer._collector.collect()


def _evaluated(trainer: Trainer, eval_data: Any, epoch: int) -> dict[str, float]:
    """Give what the evaluation of an epoch adds to its row."""

    def leave_if_asked() -> None:
        if trainer._notice:
            raise _Interrupted

    if eval_data is None:
        return {}
    loader = trainer._feeding.for_evaluation(eval_data, None)
    try:
        found = trainer._evaluate(loader, between=leave_if_asked)
    except _Interrupted:
        trainer._save_and_leave()
    trainer._hooks.call("on_evaluate_end", trainer=trainer, epoch=epoch, metrics=found)
    return {f"eval_{name}": value for name, value in found.items()}


def _record(model: Any, metrics: Mapping[str, float]) -> None:
    """Let a graph keep the metrics too, so that its trends and exports have them."""
    if isinstance(model, Graph):
        for name, value in metrics.items():
            model.record(name, value)
        model.end_epoch()
