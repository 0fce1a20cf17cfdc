"""The updates of an epoch that were skipped with nan="skip": how many, and what a run reports about them."""

from __future__ import annotations

from typing import Literal

from flodl.core.formats import counted

from ..evaluation.names import SKIPPED
from ..session import Session


def num_skipped_in_epoch(session: Session) -> int:
    """Return how many updates of the current epoch were skipped; this waits for the device."""
    before: int = sum(row.get(SKIPPED, 0) for row in session.history)
    # A run that was started with another policy may have skipped some that are in no row.
    return min(int(session.train_step.num_skipped) - before, _num_updates(session))


def skipped_alert(session: Session, skipped: int) -> tuple[str, Literal["info", "warning"]] | None:
    """Return what to report at the end of an epoch, and its level; None if no update was skipped."""
    if not skipped:
        return None
    updates = _num_updates(session)
    text = f"{skipped} of {counted(updates, 'update')} skipped: the loss or the gradients were not finite"
    if skipped >= updates:
        return f"{text}. Nothing was trained in this epoch", "warning"
    # The loss scale of fp16 is found by trying: a few skipped updates are normal.
    return text, "info" if session.train_step.settings.precision == "fp16" else "warning"


def _num_updates(session: Session) -> int:
    """Return the number of updates of the epoch that has just been trained."""
    return -(-session.position.epoch_step // session.train_step.settings.accumulate)
