"""What a run reports once when it begins: settings that are probably mistakes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..learning_rate import learning_rate
from ..session import Session
from .schedule_length import (
    rate_becomes_zero,
    schedule_counts_batches,
    schedule_ends_early,
    schedule_is_over,
)
from .schedule_units import decay_rises, schedule_is_too_long, warm_up_never_ends

# A decay of an average that is probably its complement.
SMALL_DECAY = 0.1


def warnings_at_start(
    session: Session, *, epochs: int, num_batches: int | None, sets_rate: bool = False
) -> Iterator[str]:
    """Yield a warning for each setting that is probably a mistake.

    `sets_rate` is whether something other than a schedule of the trainer may set the learning rate.
    """
    if session.schedule is None and learning_rate(session.optimizer) == 0 and not sets_rate:
        yield "every learning rate of the optimizer is 0, so nothing will be learned."
    if session.average is not None and session.average.decay <= SMALL_DECAY:
        decay = session.average.decay
        yield (
            f"ema={decay:g} is the weight of the earlier average, so the average nearly equals the weights "
            f"of the last update. If it was meant as the weight of the new weights, write ema={1 - decay:g}."
        )
    yield from _schedule_warnings(session, epochs=epochs, num_batches=num_batches)


def _schedule_warnings(session: Session, *, epochs: int, num_batches: int | None) -> Iterator[str]:
    """Yield at most one warning about a schedule whose length does not fit the run."""
    schedule, bridge = session.schedule, session.train_step.schedule
    accumulate, step = session.train_step.settings.accumulate, 0 if bridge is None else bridge.current_step
    left = _updates_left(session, epochs=epochs, num_batches=num_batches)
    if left == 0:
        return
    found: list[str] = []
    if left is not None:
        found.append(decay_rises(schedule, total=step + left))
    if bridge is not None and session.updates:
        found.append(schedule_is_over(schedule, step=step, left=left))
    if num_batches is not None and left is not None:
        per_epoch = -(-num_batches // accumulate)
        found.append(rate_becomes_zero(schedule, total=step + left, per_epoch=per_epoch))
    if num_batches is not None and session.epochs == 0:
        found.append(schedule_ends_early(schedule, per_epoch=per_epoch, epochs=epochs))
        found.append(
            schedule_counts_batches(schedule, accumulate=accumulate, num_batches=num_batches, epochs=epochs)
        )
        if session.start.limit is None and left is not None:  # a limit is for a trial
            found.append(warm_up_never_ends(schedule, total=step + left))
            found.append(schedule_is_too_long(schedule, total=step + left))
    yield from [text for text in found if text][:1]


def _updates_left(session: Session, *, epochs: int, num_batches: int | None) -> int | None:
    """Return the number of updates that a run still has, None if it is unknown.

    A resumed epoch has only the rest of its updates, and one whose end was interrupted has none.
    """
    position, accumulate = session.position, session.train_step.settings.accumulate
    is_trained = position.open_row is not None
    epochs_left = epochs - session.epochs - is_trained
    if epochs_left <= 0:
        return 0
    if num_batches is None:
        return None
    done = 0 if is_trained else -(-position.epoch_step // accumulate)
    return max(epochs_left * -(-num_batches // accumulate) - done, 0)


def unused_precision(session: Session) -> str:
    """Return a note if the precision has no effect on the device, or ""."""
    if session.train_step.settings.precision != "tf32" or session.device.type == "cuda":
        return ""
    return (
        f"precision='tf32' has no effect on {str(session.device)!r}: only CUDA devices have TF32, so this "
        "run computes in float32"
    )


def chosen_on_training_data(
    train_data: Any, eval_data: Any, watched: Iterable[tuple[str, str]]
) -> Iterator[str]:
    """Yield a warning if weights, or the end of a run, are chosen by an evaluation on the training data.

    >>> [*chosen_on_training_data([1], [2], [("EarlyStopping", "eval_loss")])]
    []
    """
    who, name = next((one for one in watched if one[1].startswith("eval_")), ("", ""))
    if who and is_same_data(train_data, eval_data):
        yield (
            f"{who} watches {name!r}, and the evaluation data is the training data, so it says nothing about "
            "new data. Set some data aside."
        )


def is_same_data(train_data: Any, eval_data: Any) -> bool:
    """Return whether two sources are certainly the same: one object, the same tensors, or equal texts.

    >>> import torch
    >>> x, y = torch.ones(4, 2), torch.ones(4)
    >>> is_same_data((x, y), (x, y)), is_same_data((x, y), (x.clone(), y))
    (True, False)
    """
    if train_data is eval_data:
        return True
    if isinstance(train_data, tuple) and isinstance(eval_data, tuple):
        return len(train_data) == len(eval_data) and all(a is b for a, b in zip(train_data, eval_data))
    content = getattr(train_data, "content", None)
    return isinstance(content, str) and content == getattr(eval_data, "content", None)
